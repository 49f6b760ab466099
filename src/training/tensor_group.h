#pragma once

#include <ATen/core/TensorBody.h>

#include <algorithm>
#include <vector>

namespace accelerate::detail {

/// Tensors of one device and dtype, as operators on lists of tensors want them.
struct TensorGroup {
  c10::Device device;
  at::ScalarType dtype;
  std::vector<at::Tensor> tensors;
};

/// Puts a tensor with those that are like it.
inline void add_to_groups(std::vector<TensorGroup>& kinds, const at::Tensor& tensor) {
  auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const TensorGroup& candidate) {
    return candidate.device == tensor.device() && candidate.dtype == tensor.scalar_type();
  });
  if (kind == kinds.end()) kind = kinds.insert(kind, {tensor.device(), tensor.scalar_type(), {}});
  kind->tensors.push_back(tensor);
}

}  // namespace accelerate::detail
