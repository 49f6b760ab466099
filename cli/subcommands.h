#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accelerate::detail::cli {

/// Exit code of a command line that cannot be understood, as Python's argparse has it.
inline constexpr int kUsageExitCode = 2;

/// Writes "SPEAKER: PROBLEM" to stderr, on one line: a problem may quote anything from a file or a variable. `speaker` is
/// "accelerate" or "accelerate COMMAND", and is named as it was called.
void tell_problem(const std::string& speaker, std::string_view problem);

/// `accelerate config`: `arguments` are those after the word config. Returns the exit code.
int run_config_command(std::vector<std::string> arguments);

/// `accelerate launch`: `arguments` are those after the word launch. Returns the exit code.
int run_launch_command(std::vector<std::string> arguments);

/// `accelerate inspect`: tells what files of weights and states hold.
int run_inspect_command(std::vector<std::string> arguments);

/// `accelerate merge-weights`: makes one file of a folder of shards.
int run_merge_command(std::vector<std::string> arguments);

/// `accelerate estimate-memory`: tells how much memory a model needs.
int run_estimate_command(std::vector<std::string> arguments);

/// `accelerate test`: launches the test program under the current configuration.
int run_test_command(std::vector<std::string> arguments);

/// `accelerate env`: prints what a bug report should say about this machine.
int run_env_command(std::vector<std::string> arguments);

/// `accelerate completion`: prints a script for a shell.
int run_completion_command(std::vector<std::string> arguments);

/// `accelerate manual NAME`: prints a manual page, for the build; no help names it.
int run_manual_command(std::vector<std::string> arguments);

}  // namespace accelerate::detail::cli
