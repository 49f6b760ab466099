#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "config/config_file.h"
#include "console/asker.h"

namespace accelerate::detail {

/// Asks what `accelerate config` asks, each question only where an earlier answer makes it matter, and returns the
/// configuration that Python's own wizard makes of the same answers. `environment` tells the home folder.
Config ask_for_config(Asker& asker, const std::string& path, const Environment& environment = process_environment);

}  // namespace accelerate::detail
