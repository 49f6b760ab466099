#pragma once

#include <ATen/core/TensorBody.h>
#include <torch/optim/optimizer.h>

#include <memory>

#include "training/fused_call.h"
#include "training/fused_check.h"
#include "training/fused_step.h"

namespace accelerate::detail {

/// A fused kernel of LibTorch, which takes the step of one optimizer: it knows where that keeps its options and its state. What
/// is common to all of them (which parameters go together, counts, skipped and recorded steps) is FusedStep's.
class FusedKernel {
 public:
  /// `optimizer` is of the kernel's type, and outlives it.
  explicit FusedKernel(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}
  virtual ~FusedKernel() = default;
  FusedKernel(const FusedKernel&) = delete;
  FusedKernel& operator=(const FusedKernel&) = delete;

  torch::optim::Optimizer& optimizer() const { return optimizer_; }

  /// Whose step it takes, for the check whether it does so rightly.
  virtual FusedOptimizer kind() const = 0;
  /// How many tensors of a parameter's state the kernel takes with these options.
  virtual size_t state_tensors(const torch::optim::OptimizerOptions& options) const = 0;
  /// The state of a parameter; what is missing is undefined. Changes nothing.
  virtual FusedState find_state(const at::Tensor& parameter) const = 0;
  /// The state of a parameter for a step. Makes what is missing: in the optimizer, or, where the kernel fills it, only in what it
  /// returns, which `begins` then.
  virtual FusedState make_state(const torch::optim::OptimizerOptions& options, const at::Tensor& parameter) = 0;
  /// Launches the kernel, and gives the optimizer the state that it `begins`. Counts are told already; the count of the optimizer
  /// itself is not touched.
  virtual void launch(const FusedCall& call, const StepConditions& conditions) = 0;
  /// Whether options are equal but for the learning rate.
  virtual bool equal_but_for_rate(const torch::optim::OptimizerOptions& a, const torch::optim::OptimizerOptions& b) const = 0;

 private:
  torch::optim::Optimizer& optimizer_;
};

/// A file for each: fused_adam.cpp, fused_sgd.cpp.
std::unique_ptr<FusedKernel> make_fused_adamw(torch::optim::Optimizer& adamw);
std::unique_ptr<FusedKernel> make_fused_adam(torch::optim::Optimizer& adam);
std::unique_ptr<FusedKernel> make_fused_sgd(torch::optim::Optimizer& sgd);

}  // namespace accelerate::detail
