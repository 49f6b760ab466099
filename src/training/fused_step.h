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
  std::function<void()> take_back;
};

/// How an optimizer of LibTorch takes a step.
class OptimizerStep {
 public:
  virtual ~OptimizerStep() = default;
  virtual void take() = 0;
  /// Calls `closure` with gradients on, and steps with those it made. Returns what it returned.
  virtual at::Tensor take(const std::function<at::Tensor()>& closure) = 0;
  /// Takes a step unless `found_inf` is 1, which the device looks up. Returns how its count is taken back, or nothing, without a
  /// step, where that cannot be left to the device.
  virtual std::function<void()> take_unless(const at::Tensor& /*found_inf*/) { return {}; }
  /// Records a step, with `found_inf` one that the device may skip. NotRecordable where its kernels are told what changes from
  /// step to step by the host.
  virtual RecordedStep record(const std::optional<at::Tensor>& found_inf) = 0;
};

/// Through fused kernels for exactly AdamW, Adam and SGD: a class derived from one of them may do something else. Any other
/// optimizer steps as it is. `optimizer` must outlive the result.
std::unique_ptr<OptimizerStep> make_step(torch::optim::Optimizer& optimizer);

}  // namespace accelerate::detail
