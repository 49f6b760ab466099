#pragma once

#include <functional>
#include <optional>
#include <string>

#include <accelerate/launch/launch_plan.h>

namespace accelerate::detail {

/// Why a launch of functions failed.
struct LaunchFailure {
  /// The rank that failed first, or -1 when no rank did: a signal to the launch, or a failed fork.
  int rank = -1;
  /// Its exit code: 1 after an exception, 128 + signal when a signal killed it.
  int exit_code = 0;
  /// The signal that killed it, or 0.
  int signal = 0;
  /// The exception's message, truncated to a few kilobytes; for rank -1, what happened. Empty when a rank left no message.
  std::string message = {};
  /// How long that rank ran.
  double seconds = 0;
};

/// Runs `body(rank)` in one new process for each worker of `plan`, with the rules of `run_launch`, and waits for them.
/// Returns nothing when all returned. The workers are copies of this program with one thread, in which locks that other
/// threads held stay locked (those of malloc and stdio do not); what they change, this program does not see. A worker ends
/// when `body` does: stdout, stderr and the standard streams are flushed, but no static object is destroyed.
/// The program's signals stay as they are. When it dies, the workers end too.
/// Throws WorkerError when fork fails.
std::optional<LaunchFailure> run_functions(const LaunchPlan& plan, const std::function<void(int rank)>& body);

}  // namespace accelerate::detail
