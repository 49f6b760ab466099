#pragma once

#include <string>
#include <vector>

namespace accelerate::cli {

/// Exit code of a command line that cannot be understood, as Python's argparse has it.
inline constexpr int kUsageExitCode = 2;

/// `accelerate config`: `arguments` are those after the word config. Returns the exit code.
int run_config_command(std::vector<std::string> arguments);

/// `accelerate launch`: `arguments` are those after the word launch. Returns the exit code.
int run_launch_command(std::vector<std::string> arguments);

}  // namespace accelerate::cli
