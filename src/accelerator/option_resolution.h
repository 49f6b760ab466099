#pragma once

#include <accelerate/accelerator/options.h>
#include <accelerate/core/launch_environment.h>

#include <memory>

namespace accelerate::detail {

struct DeepSpeedSettings;

/// Fills in what the environment says and the program does not, and checks the result: before the other ranks are joined, since
/// a wrong option is no reason to keep them waiting. ConfigError names the variable, UsageError the option.
/// Returns what DeepSpeed's configuration says, if there is one.
std::shared_ptr<const DeepSpeedSettings> resolve_options(AcceleratorOptions& options, const Environment& environment);

}  // namespace accelerate::detail
