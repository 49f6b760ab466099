#pragma once

#include <string>
#include <vector>

#include "command_page.h"

namespace accelerate::detail::cli {

/// The names of all manual pages: "accelerate", "accelerate-cpp", "accelerate-launch" and so on.
std::vector<std::string> manual_names(const std::vector<CommandPage>& pages);

/// One of them in the language of man. UsageError when there is no such page.
std::string manual_page(const std::vector<CommandPage>& pages, const std::string& name);

}  // namespace accelerate::detail::cli
