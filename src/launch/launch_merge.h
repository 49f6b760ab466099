#pragma once

#include <nlohmann/json.hpp>

#include "launch/launch_arguments.h"

namespace accelerate::detail {

/// Merges a config file into the arguments; `config` holds the keys of the file, or is null when there is none.
/// The command line overrides the file, and the file overrides the defaults of the flags. Flags that select the training
/// paradigm count as one: when any was given, the file's distributed_type is ignored.
/// Also sets `use_cpu`, and `deepspeed_fields`: the names of the DeepSpeed settings that come from the file.
/// UsageError when a required setting is still missing.
LaunchArguments merge_config(LaunchArguments arguments, const nlohmann::json* config);

}  // namespace accelerate::detail
