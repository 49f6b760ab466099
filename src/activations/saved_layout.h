#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <string>
#include <vector>

namespace accelerate::detail {

/// What a saved tensor looks like. A rerun must save the same.
struct SavedLayout {
  explicit SavedLayout(const at::Tensor& tensor);
  bool operator==(const SavedLayout&) const = default;
  /// "Float [2, 3] on cpu".
  std::string text() const;

  c10::ScalarType dtype;
  std::vector<int64_t> sizes;  // none for nested tensors, which have no single ones
  c10::Device device;
};

}  // namespace accelerate::detail
