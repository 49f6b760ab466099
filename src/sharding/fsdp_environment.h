#pragma once

#include <accelerate/core/launch_environment.h>
#include <accelerate/sharding/fsdp_options.h>

#include <optional>

namespace accelerate::detail {

/// The options in the FSDP_* and PARALLELISM_CONFIG_* variables that `accelerate launch --use_fsdp` sets, read as Python's plugin
/// reads them; nothing unless ACCELERATE_USE_FSDP is true. What no variable sets has the default of FsdpOptions. ConfigError
/// names the variable, its value and what was expected. Warns of variables that have no effect in the version they were given
/// for.
std::optional<FsdpOptions> fsdp_options_from(const Environment& environment);

}  // namespace accelerate::detail
