#pragma once

#include <accelerate/core/launch_environment.h>

#include "distributed/c10d_compat.h"

namespace accelerate {

/// The store through which the processes of `me`'s run find each other, with keys of this group's own. Returns when
/// rank 0 has been reached. ConfigError names MASTER_ADDR or MASTER_PORT when they cannot be right, DistributedError
/// tells that rank 0 did not come within `patience`.
c10::intrusive_ptr<c10d::Store> join_store(const LaunchEnvironment& me, std::chrono::milliseconds patience);

/// To be called when the group of that store has met: the next one has other keys. One that did not meet may be tried again.
void note_group_made(const LaunchEnvironment& me);

}  // namespace accelerate
