#pragma once

#include <ATen/core/TensorBody.h>

#include <source_location>
#include <vector>

namespace accelerate::detail {

class Communicator;

/// Fills `tensors` with those of rank `from`, in as few collectives as their number allows. They are of the same shapes and
/// dtypes on all ranks, and dense.
void broadcast_packed(Communicator& communicator, const std::vector<at::Tensor>& tensors, int from, const char* call,
                      std::source_location where);

}  // namespace accelerate::detail
