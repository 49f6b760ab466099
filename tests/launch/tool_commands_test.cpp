// accelerate test and accelerate env as a user meets them. The test program itself has tests of its own; here a script stands for
// it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <accelerate/core/version.h>
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {
namespace {

constexpr const char* kSuccessLine = "Test is a success! You are ready for your distributed training!\n";

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A tree as it is installed, in a place of its own: the command line in bin, and a script instead of the test program.
class MovedTree {
 public:
  MovedTree() {
    std::filesystem::create_directories(folder_ / "prefix/bin");
    std::filesystem::copy_file(ACCELERATE_CLI, command());
    std::filesystem::create_directories(test_program().parent_path());
  }
  std::filesystem::path command() const { return folder_ / "prefix/bin/accelerate"; }
  std::filesystem::path test_program() const {
    return (command().parent_path() / ACCELERATE_HELPER_FOLDER / "self_test").lexically_normal();
  }
  void write_test_program(const std::string& script, bool executable = true) const {
    std::ofstream(test_program()) << "#!/bin/sh\n" << script << "\n";
    if (executable) std::filesystem::permissions(test_program(), std::filesystem::perms::owner_all);
  }
  /// Stored configurations of the user are out of its sight.
  ProgramResult run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), command());
    return run_program(arguments, {.environment = {{"HF_HOME", folder_.name()}}});
  }
  std::string config(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }

 private:
  TemporaryFolder folder_;
};

const std::string kTwoOnTheCpu =
    "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: MULTI_CPU\nmixed_precision: 'no'\nnum_machines: 1\n"
    "num_processes: 2\nuse_cpu: true\n";

TEST(TestCommand, EndsWithPythonsLineWhenTheProgramSucceeds) {
  const MovedTree tree;
  tree.write_test_program("echo checking it ... ok");
  const auto result = tree.run({"test"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_TRUE(has(result.output, "no config file")) << result.output;
  EXPECT_TRUE(has(result.output, "checking it ... ok\n")) << result.output;
  EXPECT_TRUE(result.output.ends_with(kSuccessLine)) << result.output;
}

TEST(TestCommand, FailsWithTheProgramsExitCodeAndWithoutThatLine) {
  const MovedTree tree;
  tree.write_test_program("echo the check of gather failed >&2; exit 1");
  const auto result = tree.run({"test"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(has(result.errors, "the check of gather failed")) << result.errors;
  EXPECT_FALSE(has(result.output, "success")) << result.output;
}

TEST(TestCommand, LaunchesUnderTheConfigurationItNames) {
  const MovedTree tree;
  tree.write_test_program("echo rank $RANK of $WORLD_SIZE");
  const std::string given = tree.config("mine.yaml", kTwoOnTheCpu);
  const auto with_flag = tree.run({"test", "--config-file", given});
  EXPECT_TRUE(has(with_flag.output, "Configuration: " + given)) << with_flag.output;
  EXPECT_TRUE(has(with_flag.output, "rank 1 of 2")) << with_flag.output << with_flag.errors;
  const std::string stored = tree.config("accelerate/default_config.yaml", kTwoOnTheCpu);
  const auto by_itself = tree.run({"test"});
  EXPECT_TRUE(has(by_itself.output, "Configuration: " + stored)) << by_itself.output;
  EXPECT_TRUE(has(by_itself.output, "rank 1 of 2")) << by_itself.output << by_itself.errors;
}

TEST(TestCommand, AConfigurationThatIsNotThereIsAnErrorAndNothingIsStarted) {
  const MovedTree tree;
  tree.write_test_program("echo started");
  const auto result = tree.run({"test", "--config_file", "/no/such/config.yaml"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_TRUE(has(result.errors, "/no/such/config.yaml")) << result.errors;
  EXPECT_FALSE(has(result.output, "started")) << result.output;
}

TEST(TestCommand, AMissingOrUnexecutableTestProgramIsSaidPlainly) {
  const MovedTree tree;
  const auto missing = tree.run({"test"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_TRUE(has(missing.errors, "test program")) << missing.errors;
  EXPECT_EQ(RunningProgram::occurrences(missing.errors, "\n"), 1) << missing.errors;
  tree.write_test_program("true", false);
  const auto not_executable = tree.run({"test"});
  EXPECT_EQ(not_executable.exit_code, 1);
  EXPECT_TRUE(has(not_executable.errors, "test program")) << not_executable.errors;
}

TEST(EnvCommand, PrintsRowsThatCanBePasted) {
  const MovedTree tree;
  const auto result = tree.run({"env"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  for (const std::string& row :
       {std::string("- `Accelerate` version: ") + version() + " (C++)\n", std::string("- Platform: Linux-"),
        "- `accelerate` bash location: " + tree.command().string() + "\n", std::string("- Operating system: "),
        std::string("- Compiler: "), std::string("- LibTorch version: "), std::string("- LibTorch accelerator: "),
        std::string("- Backends: gloo: "), std::string("- System CPU: "), std::string("- System RAM: "),
        std::string("- GPU type: "), std::string("- GPU driver: ")}) {
    EXPECT_TRUE(has(result.output, "\n" + row)) << row << "\nis not in\n" << result.output;
  }
  EXPECT_TRUE(result.output.ends_with("- `Accelerate` default config:\n\tNot found\n")) << result.output;
}

TEST(EnvCommand, PrintsTheStoredConfigurationAndTheOneItIsGiven) {
  const MovedTree tree;
  tree.config("accelerate/default_config.yaml", kTwoOnTheCpu);
  const auto stored = tree.run({"env"});
  EXPECT_TRUE(has(stored.output, "- `Accelerate` default config:\n\t- compute_environment: LOCAL_MACHINE\n")) << stored.output;
  const std::string given =
      tree.config("other.yaml", kTwoOnTheCpu + "fsdp_config:\n  fsdp_version: 2\n  fsdp_offload_params: true\n");
  const auto passed = tree.run({"env", "--config_file=" + given});
  EXPECT_TRUE(has(passed.output, "- `Accelerate` config passed:\n")) << passed.output;
  for (const char* row : {"\t- use_cpu: True\n", "\t- num_processes: 2\n", "\t- mixed_precision: no\n", "\t- debug: False\n",
                          "\t- fsdp_config: {'fsdp_offload_params': True, 'fsdp_version': 2}\n"}) {
    EXPECT_TRUE(has(passed.output, row)) << row << passed.output;
  }
}

TEST(EnvCommand, AConfigurationThatCannotBeReadIsOneClearErrorAndNoReport) {
  const MovedTree tree;
  const std::string broken = tree.config("broken.yaml", "num_processes: [\n");
  for (const std::string& path : {broken, std::string("/no/such/config.yaml")}) {
    const auto result = tree.run({"env", "--config_file", path});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.output, "");
    EXPECT_TRUE(has(result.errors, path)) << result.errors;
  }
}

TEST(ToolCommands, WrongArgumentsAreRefusedByName) {
  const struct {
    std::vector<std::string> arguments;
    std::string expected;
  } cases[] = {
      {{"test", "--config_fil", "x"}, "The closest is --config_file"},
      {{"test", "--config-fil=x"}, "The closest is --config_file"},
      {{"test", "--config_file"}, "--config_file needs a value"},
      {{"test", "script.py"}, "Unexpected argument 'script.py'"},
      {{"env", "--hlep"}, "The closest is --help"},
      {{"env", "-x"}, "There is no flag"},
      {{"env", "now"}, "Unexpected argument 'now'"},
      {{"completion"}, "An argument is missing: bash | zsh"},
      {{"completion", "zhs"}, "The closest is zsh"},
      {{"completion", "bash", "zsh"}, "Unexpected argument 'zsh'"},
      {{"completion", "--shell", "bash"}, "There is no flag --shell"},
      {{"manual"}, "Give the name of one manual page"},
      {{"manual", "accelerate-lunch"}, "The closest is accelerate-launch"},
      {{"tset"}, "The closest is 'test'"},
      {{"evn"}, "The closest is 'env'"},
      {{"--hepl"}, "The closest is '--help'"},
      {{"--versoin"}, "The closest is '--version'"},
  };
  for (const auto& each : cases) {
    std::vector<std::string> line = {ACCELERATE_CLI};
    line.insert(line.end(), each.arguments.begin(), each.arguments.end());
    const auto result = run_program(line);
    EXPECT_EQ(result.exit_code, 2) << each.expected;
    EXPECT_EQ(result.output, "") << each.expected;
    EXPECT_EQ(RunningProgram::occurrences(result.errors, "\n"), 1) << result.errors;
    EXPECT_TRUE(has(result.errors, each.expected)) << result.errors;
  }
}

TEST(ToolCommands, EveryCommandIsListedAndHasHelp) {
  const auto all = run_program({ACCELERATE_CLI, "--help"});
  EXPECT_FALSE(has(all.output, "manual")) << all.output;
  for (const char* name : {"config", "launch", "test", "env", "completion"}) {
    EXPECT_TRUE(has(all.output, std::string("\n  ") + name + " ")) << all.output;
    const auto help = run_program({ACCELERATE_CLI, name, "--help"});
    EXPECT_EQ(help.exit_code, 0) << name << help.errors;
    EXPECT_TRUE(has(help.output, std::string("accelerate ") + name)) << help.output;
    EXPECT_TRUE(has(help.output, "--help")) << help.output;
  }
}

TEST(ToolCommands, TheNameOfTheProgramMayChooseTheCommand) {
  const TemporaryFolder folder;
  for (const char* name : {"accelerate-env", "accelerate-launch"}) std::filesystem::create_symlink(ACCELERATE_CLI, folder / name);
  EXPECT_TRUE(has(run_program({folder / "accelerate-env", "--help"}).output, "usage: accelerate env"));
  const auto launched = run_program({folder / "accelerate-launch", "--cpu", "echo", "started"});
  EXPECT_EQ(launched.output, "started\n") << launched.errors;
}

TEST(ToolCommands, BesidePythonsAccelerateItAnswersToAccelerateCppAndNamesItselfSo) {
  const TemporaryFolder folder;
  const std::string program = folder / "accelerate-cpp";
  std::filesystem::create_symlink(ACCELERATE_CLI, program);
  const auto launched = run_program({program, "launch", "--cpu", "echo", "started"});
  EXPECT_EQ(launched.output, "started\n") << launched.errors;
  for (const std::vector<std::string>& line : std::vector<std::vector<std::string>>{
           {program, "--help"}, {program, "launch", "--help"}, {program, "env", "--help"}, {program, "completion", "-h"}}) {
    const auto help = run_program(line);
    EXPECT_EQ(help.exit_code, 0) << help.errors;
    EXPECT_TRUE(help.output.starts_with("usage: accelerate-cpp ")) << help.output;
    for (const char* other : {"`accelerate ", "$(accelerate "}) EXPECT_FALSE(has(help.output, other)) << help.output;
  }
  const auto refused = run_program({program, "env", "--confg_file", "x"});
  EXPECT_TRUE(refused.errors.starts_with("accelerate-cpp env: There is no flag --confg_file")) << refused.errors;
  EXPECT_TRUE(has(refused.errors, "`accelerate-cpp env --help` lists them all")) << refused.errors;
  EXPECT_TRUE(has(run_program({ACCELERATE_CLI, "--help"}).output, "usage: accelerate <command>"));
}

}  // namespace
}  // namespace accelerate::testing
