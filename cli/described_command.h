#pragma once

#include <functional>
#include <string>
#include <vector>

#include "arguments.h"

namespace accelerate::detail::cli {

/// Runs a command that its page describes completely: prints help, reports errors, and otherwise calls `run`. `more_help` is
/// appended to the help, for what depends on this machine. The exit code is that of `run`, 2 for invalid arguments, 1 for any
/// other error.
int run_described(const std::string& command, const std::vector<std::string>& given,
                  const std::function<int(const Arguments&)>& run, const std::string& more_help = "");

}  // namespace accelerate::detail::cli
