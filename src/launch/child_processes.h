#pragma once

#include <sys/types.h>

#include <set>

namespace accelerate::detail {

/// The children of a process, orphans that it adopted among them, and those that have ended but were not waited for.
std::set<pid_t> list_children(pid_t parent);

}  // namespace accelerate::detail
