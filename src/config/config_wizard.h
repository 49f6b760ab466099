#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "config/config_file.h"
#include "console/asker.h"

namespace accelerate::detail {

/// Asks the questions of `accelerate config`, each only if earlier answers make it relevant, and returns the configuration that
/// Python's own wizard produces for the same answers. `environment` gives the home folder.
Config ask_for_config(Asker& asker, const std::string& path, const Environment& environment = process_environment);

}  // namespace accelerate::detail
