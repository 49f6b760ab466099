#include <gtest/gtest.h>

#include <fstream>

#include "config/config_file.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {

using namespace detail;
namespace {

/// `accelerate config` with a home of its own.
class ConfigCommand : public ::testing::Test {
 protected:
  ProgramResult run(std::vector<std::string> arguments, const std::string& input = "") {
    arguments.insert(arguments.begin(), {ACCELERATE_CLI, "config"});
    return run_program(arguments, {.environment = {{"HF_HOME", home_.name()}, {"CUDA_VISIBLE_DEVICES", ""}}, .input = input});
  }
  std::string default_file() const { return home_ / "accelerate/default_config.yaml"; }
  static std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TemporaryFolder home_;
};

TEST_F(ConfigCommand, DefaultWritesWhatPythonWritesOnAMachineWithoutGpus) {
  const auto result = run({"default"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_NE(result.output.find(default_file()), std::string::npos) << result.output;
  EXPECT_EQ(content(default_file()), content(ACCELERATE_TEST_GOLDEN "/config_yaml/basic_0gpu_no.json"));
}

TEST_F(ConfigCommand, DefaultTakesPrecisionAndPlaceInBothSpellings) {
  for (const auto& flags :
       std::vector<std::vector<std::string>>{{"--mixed_precision", "bf16", "--config_file", home_ / "1.yaml"},
                                             {"--mixed-precision=bf16", "--config-file=" + (home_ / "1.yaml").string()}}) {
    std::vector<std::string> words = {"default"};
    words.insert(words.end(), flags.begin(), flags.end());
    EXPECT_EQ(run(words).exit_code, 0);
    EXPECT_EQ(read_config(home_ / "1.yaml").fields.at("mixed_precision"), "bf16");
    std::filesystem::remove(home_ / "1.yaml");
  }
}

TEST_F(ConfigCommand, DefaultLeavesAFileThatExistsAlone) {
  std::ofstream(home_ / "mine.yaml") << "mine\n";
  const auto result = run({"default", "--config_file", home_ / "mine.yaml"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.output.find("already exists"), std::string::npos) << result.output;
  EXPECT_EQ(content(home_ / "mine.yaml"), "mine\n");
}

TEST_F(ConfigCommand, UpdateBringsOldFilesUpToDateInTheirOwnFormat) {
  std::ofstream(home_ / "old.yaml") << content(ACCELERATE_TEST_GOLDEN "/config_yaml/read_old_fp16.yaml");
  EXPECT_EQ(run({"update", "--config_file", home_ / "old.yaml"}).exit_code, 0);
  EXPECT_EQ(content(home_ / "old.yaml"), content(ACCELERATE_TEST_GOLDEN "/config_yaml/updated_old_fp16.yaml"));
  std::ofstream(home_ / "old.json") << content(ACCELERATE_TEST_GOLDEN "/config_yaml/read_plain.json");
  EXPECT_EQ(run({"update", "--config_file", home_ / "old.json"}).exit_code, 0);
  EXPECT_EQ(content(home_ / "old.json"), content(ACCELERATE_TEST_GOLDEN "/config_yaml/updated_plain.json"));
}

TEST_F(ConfigCommand, UpdateWithoutAFileSaysWhereItLooked) {
  const auto result = run({"update"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.errors.find(default_file()), std::string::npos) << result.errors;
}

TEST_F(ConfigCommand, QuestionsAreAnsweredThroughAPipe) {
  const auto result = run({}, "0\nmulti-CPU\nx\n\n\n\nno\n4\nbf16\n");
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_NE(result.output.find("[1] Please enter a whole number.\n"), std::string::npos) << result.output;
  EXPECT_EQ(result.output.find('\x1b'), std::string::npos) << "no escapes where there is no terminal";
  const Config config = read_config(default_file());
  EXPECT_EQ(config.fields.at("distributed_type"), "MULTI_CPU");
  EXPECT_EQ(config.fields.at("num_processes"), 4);
  EXPECT_EQ(config.fields.at("mixed_precision"), "bf16");
}

TEST_F(ConfigCommand, AFileNamedJsonIsJson) {
  EXPECT_EQ(run({"--config_file", home_ / "c.json"}, "\n\nyes\n\n\n\n").exit_code, 0);
  EXPECT_TRUE(content(home_ / "c.json").starts_with("{\n  \"compute_environment\": \"LOCAL_MACHINE\",\n"));
}

TEST_F(ConfigCommand, WhenTheAnswersEndNothingIsWritten) {
  for (const char* input : {"", "0\n", "0\n1\n2\n0\n10.0.0.1\n", "7\n7\n7\n", "0\n4\n1\nno\nno\nno\nno\nno\n1\n1\n1\n"}) {
    const auto result = run({}, input);
    EXPECT_EQ(result.exit_code, 1) << input;
    EXPECT_NE(result.errors.find("input ended"), std::string::npos) << result.errors;
    EXPECT_FALSE(std::filesystem::exists(home_ / "accelerate")) << input;
  }
}

TEST_F(ConfigCommand, AnAnswerWithoutEndIsRefused) {
  const auto result = run({}, "0\n1\n" + std::string(100000, '7'));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.errors.find("longer than"), std::string::npos) << result.errors;
}

TEST_F(ConfigCommand, AFileThatCannotBeWrittenIsSaidBeforeAnyQuestion) {
  const auto result = run({"--config_file", home_.name()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.output, "");
  EXPECT_NE(result.errors.find("folder"), std::string::npos) << result.errors;
}

TEST_F(ConfigCommand, HelpNamesCommandsFlagsAndTheDefaultFile) {
  const auto result = run({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  for (const std::string& part : std::vector<std::string>{"default", "update", "--config_file", default_file()}) {
    EXPECT_NE(result.output.find(part), std::string::npos) << part;
  }
  EXPECT_NE(run({"default", "-h"}).output.find("--mixed_precision"), std::string::npos);
}

TEST_F(ConfigCommand, WhatCannotBeUnderstoodIsRefusedWithTheClosestName) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"defalt"}, "The closest is default"},
      {{"updated"}, "The closest is update"},
      {{"--config_fiel", "x"}, "--config_file"},
      {{"update", "--mixed_precision", "no"}, "no flag --mixed_precision"},
      {{"--config_file"}, "needs a value"},
      {{"--config_file="}, "is empty"},
      {{"default", "--mixed_precision", "int8"}, "one of: no, fp16, bf16"},
      {{"default", "--mixed_precision", "fp8"}, "one of: no, fp16, bf16"},
      {{"default", "extra"}, "Unexpected argument"},
      {{"update", "file.yaml"}, "Unexpected argument"},
      {{"-x"}, "no flag --x"},
      {{"default", "--"}, "no flag --"},
  };
  for (const auto& [words, says] : wrong) {
    const auto result = run(words);
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_NE(result.errors.find(says), std::string::npos) << result.errors;
    EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << result.errors;
    EXPECT_FALSE(std::filesystem::exists(home_ / "accelerate"));
  }
}

}  // namespace
}  // namespace accelerate::testing
