#pragma once

#include <string>
#include <vector>

#include "command_page.h"

namespace accelerate::detail::cli {

/// A bash completion script for the commands, flags, flag values and programs of `pages`.
std::string bash_completion(const std::vector<CommandPage>& pages);

/// The same for zsh, to be saved as _accelerate in a folder of $fpath.
std::string zsh_completion(const std::vector<CommandPage>& pages);

/// Other names of the program: accelerate-cpp, and those of a single command such as "accelerate-launch".
std::vector<std::string> entry_points();

}  // namespace accelerate::detail::cli
