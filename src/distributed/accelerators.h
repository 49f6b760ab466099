#pragma once

#include <optional>

/// The accelerators of this host, by LibTorch's own interfaces.
namespace accelerate::detail {

/// How many there are.
int accelerator_count();

/// Bytes that are free on one; nothing when it cannot be used or LibTorch cannot tell.
std::optional<double> free_accelerator_memory(int index);

}  // namespace accelerate::detail
