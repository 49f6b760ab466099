#pragma once

#include <nlohmann/json.hpp>

#include "launch/launch_arguments.h"

namespace accelerate::detail {

/// The arguments with what a config file adds to them; `config` holds the keys of the file, or is null when there is none.
/// What the command line gave comes before the file, and the file before the defaults of the flags. Flags that say how the
/// training is shared out count all together: when one was given, the file's distributed_type does not count.
/// Also sets `use_cpu`, and `deepspeed_fields`: the names of the DeepSpeed settings that come from the file.
/// UsageError when the file leaves open what must be known.
LaunchArguments merge_config(LaunchArguments arguments, const nlohmann::json* config);

}  // namespace accelerate::detail
