#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <memory>
#include <optional>

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// A step that was recorded, see StepRecording.
struct RecordedStep {
  /// Whether the optimizer still has the groups, options and state that were recorded; learning rates may have changed.
  std::function<bool()> fits;
  /// Tells the device the rates and counts of the step that comes next, and counts it.
  std::function<void()> begin;
  /// It has turned out to be skipped: the count goes back.
  std::function<void()> rollback;
};

/// What the device looks up when it takes a step.
struct StepConditions {
  /// The step is skipped when this is 1.
  std::optional<at::Tensor> found_inf = {};
  /// Gradients are divided by this, once they are read.
  std::optional<at::Tensor> divisor = {};
};

/// How an optimizer of LibTorch takes a step.
class OptimizerStep {
 public:
  virtual ~OptimizerStep() = default;
  /// Whether it divides gradients in a step, which may be asked of it then.
  virtual bool can_divide() const { return false; }
  virtual void take(const std::optional<at::Tensor>& divisor) = 0;
  /// Calls `closure` with gradients on, and steps with those it made. Returns what it returned.
  virtual at::Tensor take(const std::function<at::Tensor()>& closure) = 0;
  /// Takes a step that the device may skip. Returns how its count is taken back, or nothing, without a step, where that cannot be
  /// left to the device.
  virtual std::function<void()> step_unless_inf(const StepConditions& /*conditions*/) { return {}; }
  /// Records a step. NotRecordable where its kernels get what changes from step to step from the host.
  virtual RecordedStep record(const StepConditions& conditions) = 0;
};

/// Divides the gradients of an optimizer in place.
void divide_gradients(torch::optim::Optimizer& optimizer, const at::Tensor& divisor);

/// Through fused kernels for exactly AdamW, Adam and SGD: a class derived from one of them may do something else. Any other
/// optimizer steps as it is, and so do weights whose kernel is wrong in this LibTorch (fused_check.h), unless it is `on_trial`.
/// `optimizer` must outlive the result.
std::unique_ptr<OptimizerStep> make_step(torch::optim::Optimizer& optimizer, bool on_trial = false);

}  // namespace accelerate::detail
