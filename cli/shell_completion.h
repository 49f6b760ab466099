#pragma once

#include <string>
#include <vector>

#include "command_page.h"

namespace accelerate::detail::cli {

/// A script for bash that completes commands, flags, their values and programs as `pages` have them.
std::string bash_completion(const std::vector<CommandPage>& pages);

/// The same for zsh, to be found by the name _accelerate in a folder of $fpath.
std::string zsh_completion(const std::vector<CommandPage>& pages);

/// Other names of the program: the one beside Python's, and those of one command, such as "accelerate-launch".
std::vector<std::string> entry_points();

}  // namespace accelerate::detail::cli
