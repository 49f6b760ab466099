#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accelerate::detail::cli {

/// Exit code for an invalid command line, as in Python's argparse.
inline constexpr int kUsageExitCode = 2;

/// Writes "SPEAKER: PROBLEM" to stderr, on one line: a problem may quote anything from a file or a variable. `speaker` is
/// "accelerate" or "accelerate COMMAND", and is printed under the name it was called by.
void tell_problem(const std::string& speaker, std::string_view problem);

/// `accelerate config`: `arguments` are those after the word config. Returns the exit code.
int run_config_command(std::vector<std::string> arguments);

/// `accelerate launch`: `arguments` are those after the word launch. Returns the exit code.
int run_launch_command(std::vector<std::string> arguments);

/// `accelerate inspect`: lists the contents of weights files and checkpoints.
int run_inspect_command(std::vector<std::string> arguments);

/// `accelerate merge-weights`: merges sharded weights into one file.
int run_merge_command(std::vector<std::string> arguments);

/// `accelerate estimate-memory`: estimates how much memory a model needs.
int run_estimate_command(std::vector<std::string> arguments);

/// `accelerate to-fsdp2`: converts a config file from version 1 of FSDP to version 2.
int run_to_fsdp2_command(std::vector<std::string> arguments);

/// `accelerate test`: launches the test program with the current configuration.
int run_test_command(std::vector<std::string> arguments);

/// `accelerate env`: prints the environment information for a bug report.
int run_env_command(std::vector<std::string> arguments);

/// `accelerate completion`: prints a script for a shell.
int run_completion_command(std::vector<std::string> arguments);

/// `accelerate manual NAME`: prints a manual page, for the build; not listed in --help.
int run_manual_command(std::vector<std::string> arguments);

}  // namespace accelerate::detail::cli
