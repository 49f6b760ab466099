#pragma once

#include <string>

#include "rendezvous/c10d_compat.h"

namespace accelerate::detail {

/// Leaves word in the store of a group that a process was not let in.
void publish_refusal(c10d::Store& store, const std::string& text);

/// For rank 0: writes to stderr what was published and not reported yet. Throws when the store cannot be reached.
void tell_refusals(c10d::Store& store);

}  // namespace accelerate::detail
