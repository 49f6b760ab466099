#include <accelerate/launch/port_reservation.h>
#include <torch/torch.h>

#include <cstdlib>
#include <thread>

#include "conformance/golden.h"
#include "support/together.h"

namespace {

using nlohmann::json;
using Table = std::map<std::string, std::string>;

accelerate::Environment environment_of(Table table) {
  return [table = std::move(table)](const std::string& name) -> std::optional<std::string> {
    const auto found = table.find(name);
    return found == table.end() ? std::nullopt : std::optional(found->second);
  };
}

/// Holds when ours throws where theirs did, and agrees by `agrees` where it did not.
void compare(golden::Tally& tally, const json& c, const json& expected, const std::function<accelerate::Value()>& call,
             const std::function<bool(const accelerate::Value&)>& agrees) {
  const auto ours = golden::outcome_of(call);
  const bool held = expected.contains("error") ? !ours.error.empty() : ours.error.empty() && agrees(ours.value);
  tally.judge(c.dump().substr(0, 300), held, to_string(ours));
}

TEST(Golden, Flags) {
  golden::Tally tally("environment.json, flags");
  for (const auto& c : golden::read("environment.json").value("flags", json::array())) {
    const auto& expected = c.at("parse_flag_from_env");
    compare(
        tally, c, expected,
        [&] {
          return accelerate::flag_from(environment_of({{"FLAG", c.at("text")}}), "FLAG", false);
        },
        [&](const accelerate::Value& ours) { return ours.get<bool>() == expected.at("value").get<bool>(); });
  }
  EXPECT_GT(tally.cases(), 0);
}

/// Sets variables for the length of a scope.
class SetVariables {
 public:
  explicit SetVariables(const Table& table) {
    for (const auto& [name, value] : table) {
      names_.push_back(name);
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~SetVariables() {
    for (const auto& name : names_) unsetenv(name.c_str());
  }

 private:
  std::vector<std::string> names_;
};

TEST(Golden, Choices) {
  golden::Tally tally("environment.json, choices");
  for (const auto& c : golden::read("environment.json").value("choices", json::array())) {
    const SetVariables scope({{"ACCELERATE_TEST_CHOICE", c.at("text")}});
    compare(
        tally, c, c, [&] { return accelerate::process_environment("ACCELERATE_TEST_CHOICE").value_or("unset"); },
        [&](const accelerate::Value& ours) { return ours.get<std::string>() == c.at("value").get<std::string>(); });
  }
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, Integers) {
  golden::Tally tally("environment.json, integers");
  for (const auto& c : golden::read("environment.json").value("integers", json::array())) {
    Table table;
    for (const char* name : {"first", "second"}) {
      if (!c.at(name).is_null()) table[name] = c.at(name);
    }
    compare(
        tally, c, c,
        [&] {
          return accelerate::integer_from(environment_of(table), {"first", "second"}).value_or(c.at("default").get<int>());
        },
        [&](const accelerate::Value& ours) { return ours.get<int>() == c.at("value").get<int>(); });
  }
  EXPECT_GT(tally.cases(), 0);
}

/// One rank of a case, as a thread: a ProcessState has no globals, so ranks may share a process.
accelerate::Value state_of(const Table& given) {
  const auto environment = environment_of(given);
  const accelerate::ProcessState state({.cpu = true, .timeout = std::chrono::seconds(60), .environment = environment});
  const auto me = accelerate::read_launch_environment(environment);
  return accelerate::StateDict{{"type", std::string(to_string(state.distributed_type())).substr(16)},
                               {"backend", state.backend()},
                               {"P", state.num_processes()},
                               {"rank", state.process_index()},
                               {"local", state.local_process_index()},
                               {"device", state.device().str()},
                               {"last", state.is_last_process()},
                               {"text", to_string(state)},
                               {"LOCAL_WORLD_SIZE", std::to_string(me.local_num_processes)}};
}

std::string difference(const accelerate::Value& ours, const json& rank) {
  const json& theirs = rank.at("value");
  for (const char* name : {"type", "backend", "device", "text"}) {
    if (ours[name].get<std::string>() != theirs.at(name).get<std::string>())
      return std::string(name) + " is " + to_string(ours[name]);
  }
  for (const char* name : {"P", "rank", "local"}) {
    if (ours[name].get<int>() != theirs.at(name).get<int>()) return std::string(name) + " is " + to_string(ours[name]);
  }
  if (ours["last"].get<bool>() != theirs.at("last").get<bool>()) return "last is " + to_string(ours["last"]);
  // Python writes what it resolved back into the environment; ours is compared with that and changes nothing.
  const json& written = rank.at("written_back");
  const bool same = written.at("RANK") == std::to_string(ours["rank"].get<int>()) &&
                    written.at("WORLD_SIZE") == std::to_string(ours["P"].get<int>()) &&
                    written.at("LOCAL_RANK") == std::to_string(ours["local"].get<int>()) &&
                    written.at("LOCAL_WORLD_SIZE") == ours["LOCAL_WORLD_SIZE"].get<std::string>();
  return same ? "" : "written_back is " + written.dump();
}

TEST(Golden, ProcessLayout) {
  golden::Tally tally("environment.json, process_layout");
  for (const auto& c : golden::read("environment.json").value("process_layout", json::array())) {
    std::vector<golden::Outcome> outcomes(c.at("P").get<size_t>());
    std::vector<std::thread> ranks;
    accelerate::PortReservation reservation;
    const int port = reservation.take_any();
    for (size_t r = 0; r < outcomes.size(); ++r) {
      ranks.emplace_back([&, r] {
        auto given = c.at("ranks").at(r).at("given").get<Table>();
        given["MASTER_ADDR"] = "127.0.0.1";
        given["MASTER_PORT"] = std::to_string(port);
        outcomes[r] = golden::outcome_of([&] { return state_of(given); });
      });
    }
    for (auto& rank : ranks) rank.join();
    std::string wrong;
    for (size_t r = 0; r < outcomes.size() && wrong.empty(); ++r)
      wrong = outcomes[r].error.empty() ? difference(outcomes[r].value, c.at("ranks").at(r)) : outcomes[r].error;
    tally.judge(c.dump().substr(0, 200), wrong.empty(), wrong);
  }
  EXPECT_GT(tally.cases(), 0);
}

accelerate::Value accelerator_of(const Table& variables, const json& constructor) {
  const SetVariables scope(variables);
  accelerate::AcceleratorOptions options{.cpu = true};  // the data was made on a machine without a GPU
  if (constructor.contains("mixed_precision"))
    options.mixed_precision = accelerate::parse_precision(constructor.at("mixed_precision"), "mixed_precision");
  if (constructor.contains("gradient_accumulation_steps"))
    options.gradient_accumulation_steps = constructor.at("gradient_accumulation_steps");
  const accelerate::Accelerator accelerator(options);
  return accelerate::StateDict{{"mixed_precision", to_string(accelerator.mixed_precision())},
                               {"steps", accelerator.gradient_accumulation_steps()},
                               {"debug", accelerator.state().debug()},
                               {"device", accelerator.device().str()},
                               {"type", std::string(to_string(accelerator.distributed_type())).substr(16)},
                               {"state_text", to_string(accelerator)}};
}

/// Why ours differs on purpose; docs/python_to_cpp.md has the same sentences.
std::string listed_difference(const json& c) {
  const auto variables = c.at("env").get<Table>();
  const auto precision = variables.find("ACCELERATE_MIXED_PRECISION");
  if (precision != variables.end() && !c.at("constructor").contains("mixed_precision") && precision->second != "no" &&
      precision->second != "fp16" && precision->second != "bf16" && precision->second != "fp8") {
    return "an unknown ACCELERATE_MIXED_PRECISION is an error";
  }
  const auto steps = variables.find("ACCELERATE_GRADIENT_ACCUMULATION_STEPS");
  if (steps != variables.end() && (steps->second == "0" || steps->second.starts_with("-")))
    return "ACCELERATE_GRADIENT_ACCUMULATION_STEPS below 1 is an error";
  if (variables.contains("ACCELERATE_DYNAMO_BACKEND") && c.contains("error"))
    return "dynamo variables are not read, so they cannot be wrong";
  return "";
}

TEST(Golden, Accelerator) {
  golden::Tally tally("environment.json, accelerator");
  for (const auto& c : golden::read("environment.json").value("accelerator", json::array())) {
    const auto ours = golden::outcome_of([&] { return accelerator_of(c.at("env").get<Table>(), c.at("constructor")); });
    bool held = c.contains("error") == !ours.error.empty();
    if (held && ours.error.empty()) {
      for (const char* name : {"mixed_precision", "device", "type", "state_text"})
        held = held && ours.value[name].get<std::string>() == c.at("value").at(name).get<std::string>();
      held = held && ours.value["steps"].get<int>() == c.at("value").at("steps").get<int>() &&
             ours.value["debug"].get<bool>() == c.at("value").at("debug").get<bool>();
    }
    tally.judge(c.dump().substr(0, 300), held, to_string(ours), listed_difference(c));
  }
  EXPECT_GT(tally.cases(), 0);
}

}  // namespace
