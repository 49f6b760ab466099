#pragma once

#include <ATen/core/TensorBody.h>
#include <torch/optim/optimizer.h>

#include <utility>
#include <vector>

namespace accelerate::detail {

/// Whether fused kernels update this parameter rightly as far as it alone tells: they walk through memory from its start to its
/// end, and exist for the real floating-point dtypes on CPU and CUDA.
inline bool is_fusable(const at::Tensor& parameter) {
  if (parameter.layout() != at::kStrided || !(parameter.is_cpu() || parameter.is_cuda())) return false;
  const auto dtype = parameter.scalar_type();
  return (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kDouble) &&
         parameter.is_non_overlapping_and_dense() && !parameter.is_neg();
}

/// Whether elements lie at the same distances. Of a dimension of length 1 the stride says nothing, and differs between weights in
/// channels-last order and their gradients.
inline bool has_strides_of(const at::Tensor& tensor, const at::Tensor& other) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1 && tensor.stride(dim) != other.stride(dim)) return false;
  }
  return true;
}

/// Whether element i of both lies at the same distance from the start of their memory, and as it is: not to be negated when
/// read. On CPU the kernels do not check it.
inline bool same_layout(const at::Tensor& tensor, const at::Tensor& parameter) {
  return tensor.layout() == at::kStrided && tensor.scalar_type() == parameter.scalar_type() &&
         tensor.device() == parameter.device() && tensor.sizes() == parameter.sizes() && has_strides_of(tensor, parameter) &&
         !tensor.is_neg();
}

/// Takes gradients away from their parameters while it lives, so that an optimizer leaves these parameters alone.
class HiddenGradients {
 public:
  HiddenGradients() = default;
  HiddenGradients(const HiddenGradients&) = delete;
  HiddenGradients& operator=(const HiddenGradients&) = delete;
  ~HiddenGradients() {
    for (auto& [parameter, gradient] : hidden_) parameter.mutable_grad() = std::move(gradient);
  }
  void hide(const at::Tensor& parameter) {
    hidden_.emplace_back(parameter, parameter.grad());
    parameter.mutable_grad().reset();
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> hidden_;
};

}  // namespace accelerate::detail
