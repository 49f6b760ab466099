#pragma once

#include <functional>
#include <string>
#include <vector>

#include "arguments.h"

namespace accelerate::cli {

/// Runs a command whose arguments are all that its page says: prints the help, tells errors, and otherwise returns what `run`
/// returns. The exit code is that of `run`, 2 for arguments that make no sense, 1 for any other error.
int run_described(const std::string& command, const std::vector<std::string>& given,
                  const std::function<int(const Arguments&)>& run);

}  // namespace accelerate::cli
