#pragma once

#include <sys/types.h>

#include <set>

namespace accelerate {

/// The children of this process, orphans that it adopted among them, and those that have ended but were not waited for.
std::set<pid_t> list_children();

}  // namespace accelerate
