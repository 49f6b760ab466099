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

/// Whether element i of both lies at the same distance from the start of their memory, and as it is: not to be negated when
/// read. On CPU the kernels do not check it.
inline bool lies_like(const at::Tensor& tensor, const at::Tensor& parameter) {
  return tensor.layout() == at::kStrided && tensor.scalar_type() == parameter.scalar_type() &&
         tensor.device() == parameter.device() && tensor.sizes() == parameter.sizes() &&
         tensor.strides() == parameter.strides() && !tensor.is_neg();
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
