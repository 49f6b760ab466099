#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include <accelerate/core/error.h>
#include "config/config_wizard.h"

namespace accelerate::testing {

using namespace detail;
namespace {

using nlohmann::json;

/// Answers by the name of a question: a number takes a row of a menu, a list answers the same question again and again, and what
/// has no answer gets its default.
class ScriptedAsker : public Asker {
 public:
  explicit ScriptedAsker(const json& answers) {
    for (const auto& item : answers.items()) {
      for (const auto& answer : item.value().is_array() ? item.value() : json::array({item.value()}))
        left_[item.key()].push_back(answer);
    }
  }

  size_t choose(const MenuQuestion& question) override {
    asked.push_back(question.name);
    const json answer = next(question.name);
    if (answer.is_null()) return question.fallback;
    EXPECT_LT(answer.get<size_t>(), question.options.size()) << question.name;
    return answer.get<size_t>();
  }

  std::string ask(const TextQuestion& question) override {
    asked.push_back(question.name);
    for (json answer = next(question.name); !answer.is_null(); answer = next(question.name)) {
      const std::string text = answer.is_string() ? answer.get<std::string>() : answer.dump();
      const std::string problem = problem_of(question, text);
      if (problem.empty()) return text;
      problems.push_back(problem);
    }
    if (!question.fallback) throw std::runtime_error("no answer to " + question.name);
    return *question.fallback;
  }

  void tell(const std::string& note) override { notes.push_back(note); }

  /// Names of answers that nobody asked for.
  std::string unused() const {
    std::string names;
    for (const auto& [name, answers] : left_) names += answers.empty() ? "" : name + " ";
    return names;
  }

  std::vector<std::string> asked, problems, notes;

 private:
  json next(const std::string& name) {
    auto& answers = left_[name];
    if (answers.empty()) return nullptr;
    const json answer = answers.front();
    answers.erase(answers.begin());
    return answer;
  }

  std::map<std::string, std::vector<json>> left_;
};

Config ask_with(ScriptedAsker& asker) {
  return ask_for_config(asker, "file.yaml", [](const std::string& name) -> std::optional<std::string> {
    return name == "HOME" ? std::optional<std::string>("/home/somebody") : std::nullopt;
  });
}

TEST(ConfigWizard, WritesTheBytesThatPythonsWizardWritesForTheSameAnswers) {
  std::ifstream file(std::string(ACCELERATE_TEST_GOLDEN) + "/config_wizard.json");
  const json golden = json::parse(file);
  for (const auto& c : golden.at("cases")) {
    SCOPED_TRACE(c.at("name"));
    json answers = c.at("answers");
    answers.erase("credentials");  // ours asks for none: they are not stored
    ScriptedAsker asker(answers);
    const Config config = ask_with(asker);
    EXPECT_EQ(config_text(config, "file.yaml"), c.at("yaml").get<std::string>());
    EXPECT_EQ(config_text(config, "file.json"), c.at("json").get<std::string>());
    EXPECT_EQ(asker.unused(), "");
    EXPECT_EQ(asker.problems, std::vector<std::string>());
  }
  EXPECT_GE(golden.at("cases").size(), 35u);
}

TEST(ConfigWizard, AsksOnlyWhatMattersForTheAnswersSoFar) {
  ScriptedAsker cpu(json::object({{"use_cpu", "yes"}}));
  ask_with(cpu);
  EXPECT_EQ(cpu.asked, (std::vector<std::string>{"compute_environment", "distributed_type", "use_cpu", "use_dynamo",
                                                 "use_deepspeed", "mixed_precision"}));
  ScriptedAsker neuron(json::object({{"distributed_type", 9}, {"num_processes", "2"}}));
  ask_with(neuron);
  EXPECT_EQ(std::count(neuron.asked.begin(), neuron.asked.end(), "use_deepspeed"), 0) << "DeepSpeed does not run there";
  EXPECT_EQ(std::count(neuron.asked.begin(), neuron.asked.end(), "use_fsdp"), 0) << "nor does FSDP";
}

TEST(ConfigWizard, AnswersThatMakeNoSenseAreAskedAgainWithTheReason) {
  const std::vector<std::tuple<std::string, json, json, std::string>> bad = {
      {"num_machines", {{"distributed_type", 1}}, {"none", "0", "1"}, "at least 1"},
      {"num_machines", {{"distributed_type", 1}}, {"-1", "1"}, "at least 1"},
      {"num_machines", {{"distributed_type", 1}}, {"1.5", "1"}, "whole number"},
      {"machine_rank",
       {{"distributed_type", 1}, {"num_machines", "2"}, {"main_process_ip", "a"}, {"main_process_port", "1"}},
       {"2", "1"},
       "at most 1"},
      {"main_process_port", {{"distributed_type", 1}, {"num_machines", "2"}, {"main_process_ip", "a"}}, {"70000", "1"}, "65535"},
      {"main_process_port", {{"distributed_type", 1}, {"num_machines", "2"}, {"main_process_ip", "a"}}, {"http", "1"}, "whole"},
      {"main_process_ip",
       {{"distributed_type", 1}, {"num_machines", "2"}, {"main_process_port", "1"}},
       {"", "a"},
       "answer is needed"},
      {"main_process_ip", {{"distributed_type", 1}, {"num_machines", "2"}, {"main_process_port", "1"}}, {"a\tb", "a"}, "control"},
      {"use_cpu", json::object(), {"maybe", "yes"}, "yes or no"},
      {"num_processes", {{"distributed_type", 4}}, {"1", "2"}, "at least 2"},
      {"num_processes", {{"distributed_type", 1}}, {"two", "2"}, "whole number"},
      {"megatron_lm_config.megatron_lm_gradient_clipping",
       {{"distributed_type", 4}, {"num_processes", "2"}, {"use_megatron_lm", "yes"}},
       {"often", "1"},
       "number"},
  };
  for (const auto& [name, others, answers, reason] : bad) {
    json all = others;
    all[name] = answers;
    ScriptedAsker asker(all);
    EXPECT_NO_THROW(ask_with(asker)) << name;
    ASSERT_FALSE(asker.problems.empty()) << name;
    EXPECT_NE(asker.problems.back().find(reason), std::string::npos) << name << ": " << asker.problems.back();
    EXPECT_EQ(asker.unused(), "") << name;
  }
}

TEST(ConfigWizard, NumbersOfParametersMayBeWrittenWithAnExponent) {
  ScriptedAsker asker(json::object({{"distributed_type", 4},
                                    {"num_processes", "2"},
                                    {"use_fsdp", "yes"},
                                    {"fsdp_config.fsdp_auto_wrap_policy", 1},
                                    {"fsdp_config.fsdp_min_num_params", "2e6"}}));
  EXPECT_EQ(ask_with(asker).fields.at("fsdp_config").at("fsdp_min_num_params"), 2000000);
}

TEST(ConfigWizard, SaysWhatCppProgramsMakeNothingOf) {
  ScriptedAsker asker(json::object({{"use_dynamo", "yes"}, {"mixed_precision", 3}}));
  ask_with(asker);
  ASSERT_EQ(asker.notes.size(), 2u);
  EXPECT_NE(asker.notes[0].find("fp8_config"), std::string::npos);
  EXPECT_NE(asker.notes[1].find("dynamo_config"), std::string::npos);
}

TEST(ConfigWizard, SaysThatJobsOnSageMakerAreStartedElsewhere) {
  ScriptedAsker asker(json::object({{"compute_environment", 1}, {"iam_role_name", "role"}}));
  EXPECT_TRUE(is_sagemaker(ask_with(asker)));
  ASSERT_FALSE(asker.notes.empty());
  EXPECT_NE(asker.notes.front().find("Python package"), std::string::npos);
}

}  // namespace
}  // namespace accelerate::testing
