#pragma once

#include <accelerate/launch/launch_plan.h>

namespace accelerate {

/// Starts the workers of `plan`, waits for them and returns the exit code of the launch:
///   0              every rank ended with 0
///   126, 127       the program is not executable, or does not exist; nothing was started
///   128 + signal   this process got SIGINT, SIGTERM, SIGHUP or SIGQUIT, and passed it on
///   otherwise      that of the rank to blame (128 + signal when a signal ended it), said in one line on stderr
/// SIGUSR1 and SIGUSR2 are passed on and end nothing. What this process began with ignored stays so, here and in the workers.
/// To blame is the rank that failed first, unless a collective failed there: then the first that fails by itself within
/// `last_words` (within the grace period when an exception is known to unwind it), if one does. Of ranks that fail within the
/// same moment the kernel names one; when that one ended well, the lowest of the others counts.
/// When a rank fails, the others may fail by themselves for `last_words`; then, and when a signal arrives, they and all they
/// started get the grace period to end, then SIGKILL. After a failure (not a signal) up to `max_restarts` attempts follow, each
/// when nothing is left of the one before; the last one decides. No process that it started remains, except those that a clean
/// run left behind on purpose; when this process is killed outright, what is in the workers' process groups ends too.
/// Call it from the main thread of a program with no other threads: it blocks these signals and waits for them.
int run_launch(const LaunchPlan& plan);

}  // namespace accelerate
