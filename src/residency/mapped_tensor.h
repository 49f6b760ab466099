#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <string>
#include <vector>

namespace accelerate::detail {

/// A tensor that is a part of a file, mapped into memory: pages are read when they are used, and a change stays in memory.
/// CheckpointError when it cannot be mapped.
at::Tensor mapped_tensor(const std::string& file, uint64_t offset, at::IntArrayRef shape, at::ScalarType dtype);

}  // namespace accelerate::detail
