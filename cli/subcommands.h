#pragma once

#include <string>
#include <vector>

namespace accelerate::cli {

/// Exit code of a command line that cannot be understood, as Python's argparse has it.
inline constexpr int kUsageExitCode = 2;

/// `accelerate launch`: `arguments` are those after the word launch. Returns the exit code.
int run_launch_command(std::vector<std::string> arguments);

/// `accelerate inspect`: tells what files of weights and states hold.
int run_inspect_command(std::vector<std::string> arguments);

/// `accelerate merge-weights`: makes one file of a folder of shards.
int run_merge_command(std::vector<std::string> arguments);

}  // namespace accelerate::cli
