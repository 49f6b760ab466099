#pragma once

#include <accelerate/launch/launch_plan.h>
#include <nlohmann/json.hpp>

#include "launch/launch_arguments.h"

namespace accelerate::detail {

/// The launch plan for a command line. `config` holds the keys of the config file in use, or is null when there is none.
/// Pure: it depends on nothing but its arguments. Throws UsageError naming the invalid flag or key, ConfigError naming the
/// invalid environment variable.
LaunchPlan plan_command(const LaunchArguments& arguments, const nlohmann::json* config, const Environment& environment,
                        const MachineFacts& machine);

/// Whether the default config file is used with these settings; one that was named always is. `--cpu` ignores it.
bool uses_default_config(const LaunchSettings& settings);

}  // namespace accelerate::detail
