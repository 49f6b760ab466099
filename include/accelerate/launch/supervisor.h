#pragma once

#include <accelerate/launch/launch_plan.h>

namespace accelerate {

/// Starts the workers of `plan`, waits for them and returns the exit code of the launch:
///   0              every rank exited with 0
///   126, 127       the program is not executable, or does not exist; nothing was started
///   128 + signal   this process got SIGINT, SIGTERM, SIGHUP or SIGQUIT, and forwarded it
///   otherwise      that of the rank to blame (128 + signal when a signal killed it), reported in one line on stderr
/// SIGUSR1 and SIGUSR2 are forwarded and stop nothing. Signals that this process inherited as ignored stay ignored, here and in
/// the workers.
/// The rank to blame is the one that failed first, unless a collective failed there: then the first that fails on its own within
/// `last_words` (within the grace period when an exception is known to unwind it), if one does. Of ranks that fail at the same
/// moment the kernel names one; when that one exited with 0, the lowest failed rank counts.
/// When a rank fails, the others may fail on their own for `last_words`; then, and when a signal arrives, they and their
/// descendants get the grace period to exit, then SIGKILL. After a failure (not a signal) up to `max_restarts` attempts follow,
/// each when no process of the previous one is left; the last one decides. No process of the launch remains, except those that a
/// successful run left behind on purpose; when this process gets SIGKILL, the workers' process groups are killed too.
/// Call it from the main thread of a program with no other threads: it blocks these signals and waits for them.
int run_launch(const LaunchPlan& plan);

}  // namespace accelerate
