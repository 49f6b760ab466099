#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <memory>

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// How an optimizer of LibTorch takes a step.
class OptimizerStep {
 public:
  virtual ~OptimizerStep() = default;
  virtual void take() = 0;
  /// Calls `closure` with gradients on, and steps with those it made. Returns what it returned.
  virtual at::Tensor take(const std::function<at::Tensor()>& closure) = 0;
};

/// Through fused kernels for exactly AdamW, Adam and SGD: a class derived from one of them may do something else. Any other
/// optimizer steps as it is. `optimizer` must outlive the result.
std::unique_ptr<OptimizerStep> make_step(torch::optim::Optimizer& optimizer);

}  // namespace accelerate::detail
