#include <gtest/gtest.h>

#include <fstream>

#include <accelerate/core/version.h>
#include "launch/listener.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {
namespace {

ProgramResult accelerate_command(std::vector<std::string> arguments, RunOptions options = {}) {
  arguments.insert(arguments.begin(), ACCELERATE_CLI);
  return run_program(arguments, std::move(options));
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(CommandLine, SaysItsVersion) {
  const auto result = accelerate_command({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.output, std::string("accelerate ") + version() + " (C++)\n");
}

TEST(CommandLine, WithoutACommandItHelpsAndFails) {
  const auto result = accelerate_command({});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(contains(result.output, "launch"));
}

TEST(CommandLine, HelpsWhenAsked) {
  const auto result = accelerate_command({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(contains(result.output, "launch"));
}

TEST(CommandLine, AnUnknownCommandLikeNoneOfOursGetsNoHint) {
  const auto result = accelerate_command({"tensorboard"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_FALSE(contains(result.errors, "closest")) << result.errors;
  EXPECT_TRUE(contains(result.errors, "accelerate --help")) << result.errors;
}

TEST(CommandLine, NamesTheCommandClosestToAnUnknownOne) {
  const auto result = accelerate_command({"lunch"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(contains(result.errors, "'lunch'")) << result.errors;
  EXPECT_TRUE(contains(result.errors, "'launch'")) << result.errors;
}

TEST(LaunchCommandLine, HelpShowsEveryFlagOnceInGroups) {
  const auto result = accelerate_command({"launch", "--help"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* flag :
       {"--cpu", "--num_processes", "--num_machines", "--machine_rank", "--main_process_ip", "--main_process_port",
        "--num_cpu_threads_per_process", "--mixed_precision", "--max_restarts", "--grace_period", "--debug"}) {
    EXPECT_EQ(RunningProgram::occurrences(result.output, std::string("\n  ") + flag), 1) << flag;
  }
  EXPECT_FALSE(contains(result.output, "--num-processes"));
  EXPECT_TRUE(contains(result.output, "Hardware selection:"));
}

TEST(LaunchCommandLine, NamesTheFlagClosestToAnUnknownOne) {
  const auto result = accelerate_command({"launch", "--num_process=2", "true"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(contains(result.errors, "no flag --num_process.")) << result.errors;
  EXPECT_TRUE(contains(result.errors, "closest is --num_processes;")) << result.errors;
}

TEST(LaunchCommandLine, TorchrunsNamesLaunchTheSame) {
  const auto result = accelerate_command({"launch", "--dry_run", "--nnodes", "2", "--nproc_per_node", "2", "--node_rank", "1",
                                          "--master_addr", "localhost", "--master_port", "29517", "./train"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  for (const char* variable : {" RANK=2 ", " RANK=3 ", " WORLD_SIZE=4 ", " MASTER_ADDR=localhost ", " MASTER_PORT=29517 "})
    EXPECT_TRUE(contains(result.output, variable)) << variable << " is not in " << result.output;
  EXPECT_EQ(accelerate_command({"launch", "-np", "2", "sh", "-c", "echo $WORLD_SIZE"}).output, "2\n2\n");
}

TEST(LaunchCommandLine, ProcessesPerNodeThatMakeNoSenseAreRefused) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--nproc_per_node", "auto"}, "--nproc_per_node is 'auto'"},
      {{"--nproc_per_node", "2", "--num_processes", "2"}, "--nproc_per_node and --num_processes"},
      {{"--nproc_per_node", "0"}, "at least 1"},
      {{"--nnodes", "1:4", "--nproc_per_node", "2"}, "use --rdzv_backend c10d"}};
  for (const auto& [flags, named] : wrong) {
    std::vector<std::string> line = {"launch"};
    line.insert(line.end(), flags.begin(), flags.end());
    line.emplace_back("true");
    const auto result = accelerate_command(line);
    EXPECT_EQ(result.exit_code, 2) << named;
    EXPECT_TRUE(contains(result.errors, named)) << result.errors;
  }
}

TEST(LaunchCommandLine, WrongValuesAreRefusedByTheNameOfTheFlag) {
  const std::vector<std::pair<std::string, std::string>> wrong = {{"--num_processes", "two"},
                                                                  {"--num_processes", "0"},
                                                                  {"--num_processes", "-1"},
                                                                  {"--num_processes", "2x"},
                                                                  {"--main_process_port", "123456"},
                                                                  {"--main_process_port", ""},
                                                                  {"--mixed_precision", "int8"},
                                                                  {"--num_cpu_threads_per_process", "0"},
                                                                  {"--max_restarts", "-1"},
                                                                  {"--max_restarts", "often"},
                                                                  {"--grace_period", "-1"},
                                                                  {"--grace_period", "soon"},
                                                                  {"--grace_period", "nan"},
                                                                  {"--num_machines", "0"},
                                                                  {"--machine_rank", "1"}};
  for (const auto& [flag, value] : wrong) {
    const auto result = accelerate_command({"launch", flag, value, "true"});
    EXPECT_EQ(result.exit_code, 2) << flag << " " << value;
    EXPECT_TRUE(contains(result.errors, flag + " is ")) << result.errors;
  }
}

TEST(LaunchCommandLine, AFlagWithoutItsValueIsRefusedByName) {
  const auto result = accelerate_command({"launch", "--num_processes"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(contains(result.errors, "--num_processes")) << result.errors;
}

TEST(LaunchCommandLine, ALaunchWithoutAProgramIsRefused) {
  EXPECT_EQ(accelerate_command({"launch"}).exit_code, 2);
  EXPECT_EQ(accelerate_command({"launch", "--cpu"}).exit_code, 2);
  EXPECT_EQ(accelerate_command({"launch", "--cpu", "--"}).exit_code, 2);
}

TEST(LaunchCommandLine, FlagsAreKnownInBothSpellings) {
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--cpu", "--num_processes", "2", "--num_cpu_threads_per_process", "3", "--mixed_precision", "bf16"},
           {"--cpu", "--num-processes=2", "--num-cpu-threads-per-process=3", "--mixed-precision=bf16"}}) {
    std::vector<std::string> arguments = {"launch"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    for (const char* part : {"sh", "-c", "echo \"$WORLD_SIZE,$OMP_NUM_THREADS,$ACCELERATE_MIXED_PRECISION\""}) {
      arguments.emplace_back(part);
    }
    EXPECT_EQ(accelerate_command(arguments).output, "2,3,bf16\n2,3,bf16\n");
  }
}

TEST(LaunchCommandLine, AFlagGivenTwiceCountsAsItWasGivenLast) {
  const auto result =
      accelerate_command({"launch", "--cpu", "--cpu", "--num_processes", "2", "--num_processes", "1", "echo", "x"});
  EXPECT_EQ(result.output, "x\n") << result.errors;
}

TEST(LaunchCommandLine, EverythingAfterTheProgramIsPassedOnUntouched) {
  const std::vector<std::string> rest = {"--cpu", "--num_processes", "7",  "--help", "two words", "", "-x",
                                         "--",    "--unknown=1",     "$A", "\"q\"",  "-"};
  std::vector<std::string> arguments = {"launch", "printf", "<%s>"};
  std::string expected;
  for (const auto& argument : rest) {
    arguments.push_back(argument);
    expected += "<" + argument + ">";
  }
  const auto result = accelerate_command(arguments);
  EXPECT_EQ(result.output, expected) << result.errors;
}

TEST(LaunchCommandLine, TwoDashesMayStandBeforeTheProgram) {
  EXPECT_EQ(accelerate_command({"launch", "--cpu", "--", "echo", "--", "--cpu"}).output, "-- --cpu\n");
}

TEST(LaunchCommandLine, AProgramThatDoesNotExistIsNamed) {
  for (const char* name : {"no-such-program", "/no/such/program"}) {
    const auto result = accelerate_command({"launch", "--num_processes", "2", name});
    EXPECT_EQ(result.exit_code, 127);
    EXPECT_EQ(RunningProgram::occurrences(result.errors, "\n"), 1) << result.errors;
    EXPECT_TRUE(contains(result.errors, name)) << result.errors;
  }
}

TEST(LaunchCommandLine, AProgramThatIsNotExecutableIsNamed) {
  const TemporaryFolder folder;
  const std::string script = folder / "script";
  std::ofstream(script) << "#!/bin/sh\n";
  for (const std::string& name : {script, folder.name()}) {
    const auto result = accelerate_command({"launch", name});
    EXPECT_EQ(result.exit_code, 126);
    EXPECT_TRUE(contains(result.errors, name)) << result.errors;
  }
  const auto by_path = accelerate_command({"launch", "script"}, {.environment = {{"PATH", folder.name()}}});
  EXPECT_EQ(by_path.exit_code, 126);
  EXPECT_TRUE(contains(by_path.errors, script)) << by_path.errors;
}

TEST(LaunchCommandLine, ABusyPortIsReplacedAndNoted) {
  const Listener listener("127.0.0.1");
  const std::string port = std::to_string(listener.port());
  const auto result = accelerate_command(
      {"launch", "--num_processes", "2", "--main_process_port", port, "sh", "-c", "test $MASTER_PORT != " + port});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_TRUE(contains(result.errors, "Port " + port)) << result.errors;
}

}  // namespace
}  // namespace accelerate::testing
