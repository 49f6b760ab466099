#pragma once

#include <ATen/core/TensorBody.h>

#include <array>
#include <cstdint>

namespace accelerate::detail {

/// What a rank that receives a tensor must know of it beforehand. Plain bytes: it travels.
struct TensorHeader {
  static constexpr size_t kDimensions = 64;
  static constexpr int64_t kMark = 0x41434354454E5331;

  int64_t mark = kMark;
  int64_t dtype = 0;
  int64_t device_type = 0;
  int64_t dimensions = 0;
  std::array<int64_t, kDimensions> sizes = {};

  /// UsageError when it has too many dimensions.
  static TensorHeader of(const at::Tensor& tensor);
  /// A tensor like that on `device`, yet to be filled. runtime_error when these bytes are no header.
  at::Tensor room(at::Device device) const;
};

/// The memory of a contiguous tensor as bytes: backends need not know its dtype.
at::Tensor as_bytes_in_memory(const at::Tensor& contiguous);

}  // namespace accelerate::detail
