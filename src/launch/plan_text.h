#pragma once

#include <string>

#include <accelerate/launch/launch_plan.h>

namespace accelerate::detail {

/// What `--dry_run` prints: for each worker, a shell command with the same arguments and the same changes to the environment.
std::string plan_text(const LaunchPlan& plan, const Environment& environment);

/// `text` quoted for a shell where necessary.
std::string shell_quoted(const std::string& text);

}  // namespace accelerate::detail
