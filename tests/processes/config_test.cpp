#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include <accelerate/core/error.h>
#include "config/config_file.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

// Files go to and fro between this library and the real Python package. ACCELERATE_TEST_CASES says how many random ones.

namespace accelerate::testing {

using namespace detail;
namespace {

using nlohmann::json;

std::string file_content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

ProgramResult run_peer(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {ACCELERATE_PYTHON, ACCELERATE_CONFIG_PEER});
  return run_program(arguments, {.limit = std::chrono::seconds(600)});
}

class ConfigPeer : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* cases = std::getenv("ACCELERATE_TEST_CASES");
    const auto written = run_peer({"write", theirs_.name(), "7", cases ? cases : "300"});
    ASSERT_EQ(written.exit_code, 0) << written.errors;
    index_ = json::parse(file_content(theirs_ / "index.json"));
    ASSERT_FALSE(index_.empty());
  }

  TemporaryFolder theirs_, ours_;
  json index_;
};

TEST_F(ConfigPeer, FilesOfPythonAreReadAndWrittenBackByteByByteAndPythonReadsOurs) {
  for (const auto& item : index_.items()) {
    const std::string path = theirs_ / item.key(), text = file_content(path);
    try {
      const Config config = read_config(path);
      ASSERT_EQ(config.fields, item.value()) << item.key() << "\n" << text;
      ASSERT_EQ(config_text(config, path), text) << item.key();
      write_config(config, ours_ / item.key());
    } catch (const Error& error) {
      FAIL() << error.what() << "\n" << text;
    }
  }
  // The bytes are the same, so this says that nothing was lost on the way to the disk.
  std::ofstream(ours_ / "index.json") << index_.dump();
  const auto checked = run_peer({"check", ours_.name()});
  EXPECT_EQ(checked.exit_code, 0) << checked.errors;
  EXPECT_EQ(checked.output, "");
}

void expect_same_conversion(const std::string& name, const std::string& before, const std::string& after) {
  TemporaryFolder folder;
  const auto result = run_program({ACCELERATE_CLI, "to-fsdp2", "--config_file", before, "--output_file", folder / "ours.yaml"});
  EXPECT_EQ(result.exit_code, 0) << name << ": " << result.errors;
  EXPECT_EQ(file_content(folder / "ours.yaml"), file_content(after)) << name << "\n" << file_content(before);
}

TEST(ConfigCommandPeer, ToFsdp2WritesTheBytesOfPythonsCommand) {
  TemporaryFolder folder;
  constexpr int kCases = 60;
  const auto written = run_peer({"fsdp1", folder.name(), "11", std::to_string(kCases)});
  ASSERT_EQ(written.exit_code, 0) << written.errors;
  for (int i = 0; i < kCases; ++i) {
    const std::string number = std::to_string(i);
    expect_same_conversion(number, folder / (number + ".yaml"), folder / (number + ".2.yaml"));
  }
}

TEST(ConfigCommandPeer, ToFsdp2ConvertsTheGoldenFilesAsPythonDoes) {
  TemporaryFolder folder;
  std::vector<std::string> names = {"written_fsdp.yaml", "written_fsdp.json", "written_fsdp_parallelism.yaml",
                                    "written_cpu.yaml"};
  std::vector<std::string> arguments = {"fsdp2"};
  for (const auto& name : names)
    arguments.insert(arguments.end(), {std::string(ACCELERATE_TEST_GOLDEN) + "/config_yaml/" + name, folder / name});
  const auto written = run_peer(arguments);
  ASSERT_EQ(written.exit_code, 0) << written.errors;
  for (size_t i = 0; i < names.size(); ++i) expect_same_conversion(names[i], arguments[2 * i + 1], arguments[2 * i + 2]);
}

TEST(ConfigCommandPeer, FilesThatTheCommandsWriteAreReadByPython) {
  TemporaryFolder folder;
  json index;
  const auto run = [&](const std::string& name, std::vector<std::string> words, const std::string& input = "") {
    words.insert(words.begin(), {ACCELERATE_CLI, "config"});
    words.insert(words.end(), {"--config_file", folder / name});
    const auto result = run_program(words, {.input = input});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    index[name] = read_config(folder / name).fields;
  };
  run("default.yaml", {"default", "--mixed_precision", "bf16"});
  run("default.json", {"default"});
  run("asked.yaml", {}, "0\n1\n1\nno\nno\nno\n4\n2\n");
  run("asked.json", {}, "0\n4\n1\n\n\n\nyes\n\n\n\n0\n\nGPT2Block\n\n\n\n\n8\n2\n");
  std::ofstream(folder / "old.yaml") << "distributed_type: MULTI_GPU\nfp16: true\nnum_processes: 2\nfsdp_config: {}\n";
  run("old.yaml", {"update"});
  std::ofstream(folder / "index.json") << index.dump();
  const auto checked = run_peer({"check", folder.name()});
  EXPECT_EQ(checked.exit_code, 0) << checked.errors;
  EXPECT_EQ(checked.output, "");
}

}  // namespace
}  // namespace accelerate::testing
