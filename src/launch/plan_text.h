#pragma once

#include <string>

#include <accelerate/launch/launch_plan.h>

namespace accelerate::detail {

/// What `--dry_run` prints: for each worker, a command line for a shell that gives the program the same arguments and changes the
/// same variables.
std::string plan_text(const LaunchPlan& plan, const Environment& environment);

/// `text` as a shell reads it back: in quotes where it must be.
std::string shell_quoted(const std::string& text);

}  // namespace accelerate::detail
