#pragma once

#include <ATen/core/TensorBody.h>

#include <unordered_map>
#include <vector>

namespace accelerate::detail {

/// Accumulated gradients, in a separate dtype.
class GradientBuffers {
 public:
  explicit GradientBuffers(at::ScalarType dtype) : dtype_(dtype) {}

  /// Adds gradients to their sums, and takes them away from their parameters.
  void collect(const std::vector<at::Tensor>& parameters);
  /// Gives parameters their sums as gradients, to which a backward pass adds the last ones. The sums are reset.
  void give_back(const std::vector<at::Tensor>& parameters);

  /// Forgets all sums.
  void clear() { buffers_.clear(); }

  /// What has been collected for a parameter; undefined where that is nothing.
  at::Tensor sum_of(const at::Tensor& parameter) const;
  void set_sum(const at::Tensor& parameter, const at::Tensor& sum);

 private:
  struct Buffer {
    at::Tensor sum;  // its memory stays from one accumulation to the next
    bool is_empty = true;
  };

  at::ScalarType dtype_;
  std::unordered_map<const c10::TensorImpl*, Buffer> buffers_;
};

}  // namespace accelerate::detail
