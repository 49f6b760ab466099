#pragma once

#include <accelerate/big_model/max_memory.h>

namespace accelerate::detail {

/// The same limits in the order in which places are filled, without probing the host. UsageError for places that hold no
/// weights.
MaxMemory in_filling_order(const MaxMemory& max_memory);

}  // namespace accelerate::detail
