#pragma once

#include <accelerate/accelerator/options.h>
#include <accelerate/core/launch_environment.h>

namespace accelerate::detail {

/// Fills in what the environment says and the program does not, and checks the result: before the other ranks are joined, since
/// a wrong option is no reason to keep them waiting. ConfigError names the variable, UsageError the option.
void resolve_options(AcceleratorOptions& options, const Environment& environment);

}  // namespace accelerate::detail
