#pragma once

#include <accelerate/launch/launch_plan.h>
#include <nlohmann/json.hpp>

#include "launch/launch_arguments.h"

namespace accelerate::detail {

/// What `accelerate launch` does for a command line. `config` holds the keys of the config file that counts, or is null when none
/// does. Pure: it depends on nothing but its arguments. Throws UsageError naming the flag or key that is wrong, ConfigError
/// naming the variable that is.
LaunchPlan plan_command(const LaunchArguments& arguments, const nlohmann::json* config, const Environment& environment,
                        const MachineFacts& machine);

/// Whether the default config file counts for these settings; one that was named always does. `--cpu` leaves it out.
bool uses_default_config(const LaunchSettings& settings);

}  // namespace accelerate::detail
