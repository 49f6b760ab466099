#pragma once

#include <accelerate/core/launch_environment.h>

#include "rendezvous/c10d_compat.h"
#include "rendezvous/wait_notices.h"

namespace accelerate::detail {

/// The store through which the ranks of `me`'s job find each other, with keys of this group's own. Returns when all ranks are
/// there. A process of another job, one that claims a rank that is taken, and one without the job's shared secret are refused,
/// with a message on both sides. ConfigError tells that to the refused, and names MASTER_ADDR or MASTER_PORT when they cannot be
/// right; DistributedError names the ranks that did not join within `patience`. `notices` tell whom it waits for.
c10::intrusive_ptr<c10d::Store> join_store(const LaunchEnvironment& me, const Environment& environment,
                                           std::chrono::milliseconds patience, WaitNotices notices);

/// "Rank 2 of 4".
std::string rank_of(const LaunchEnvironment& me);

/// Call it when the group of that store has connected: the next one has other keys. A failed rendezvous may be retried.
void note_group_made(const LaunchEnvironment& me);

/// True when all ranks are on this host: they need nothing but its loopback interface.
inline bool on_one_host(const LaunchEnvironment& me) { return me.num_processes == me.local_num_processes; }

}  // namespace accelerate::detail
