#pragma once

#include <string>

#include <accelerate/launch/launch_plan.h>

namespace accelerate::detail {

/// What `--dry_run` prints: for each worker, a shell command with the same arguments and the same changes to the environment.
std::string plan_text(const LaunchPlan& plan, const Environment& environment);

/// `text` as one word for any POSIX shell.
std::string posix_quoted(const std::string& text);

/// The same to be read: what cannot be printed is escaped, as bash understands it.
std::string shell_quoted(const std::string& text);

}  // namespace accelerate::detail
