#pragma once

#include <sys/types.h>

#include <set>

namespace accelerate::detail {

/// The children of a process, including adopted orphans and zombies.
std::set<pid_t> list_children(pid_t parent);

}  // namespace accelerate::detail
