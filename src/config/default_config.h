#pragma once

#include <optional>
#include <string>

#include <accelerate/core/launch_environment.h>

namespace accelerate::detail {

/// Where `accelerate config` keeps its answers: HF_HOME, else XDG_CACHE_HOME, else ~/.cache, as Python has it.
std::string default_config_path(const Environment& environment);

/// `num_processes` of that file, or nothing when there is no such file or key. ConfigError names a file that cannot be read.
std::optional<int> configured_num_processes(const Environment& environment);

}  // namespace accelerate::detail
