#pragma once

#include <functional>
#include <string>
#include <vector>

#include "arguments.h"

namespace accelerate::detail::cli {

/// Runs a command whose arguments are all that its page says: prints the help, tells errors, and otherwise returns what `run`
/// returns. `more_help` ends the help, for what is only known on this machine. The exit code is that of `run`, 2 for arguments
/// that make no sense, 1 for any other error.
int run_described(const std::string& command, const std::vector<std::string>& given,
                  const std::function<int(const Arguments&)>& run, const std::string& more_help = "");

}  // namespace accelerate::detail::cli
