#pragma once

#include <ATen/core/TensorBody.h>
#include <accelerate/distributed/value.h>
#include <accelerate/training/clip.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace torch::optim {
class Optimizer;
class OptimizerParamGroup;
}  // namespace torch::optim

namespace accelerate {

class GradientState;
class GradScaler;
class Preparation;

/// A prepared optimizer: steps only where gradients are complete, with the scaler where there is one, and through fused kernels
/// where LibTorch has them (AdamW, Adam, SGD). What was prepared stays the source of truth: its options, parameter groups and
/// state may be read, changed, saved and loaded at any time, under fp16 through this class: only it knows of the last step
/// whether it was skipped. Copies are the same optimizer.
class AcceleratedOptimizer {
 public:
  /// `optimizer` must stay where it is and outlive this and its copies: UsageError, from whatever needs it, when one of
  /// LibTorch's does not. References to its `defaults()` are not valid any more. Without `scaler` steps are never skipped. Where
  /// a weight that modules share is listed more than once the optimizer forgets the repetitions, as Python never has them. With
  /// `device_placement` the state it has already goes to where its parameters are.
  AcceleratedOptimizer(torch::optim::Optimizer& optimizer, std::shared_ptr<GradientState> gradient_state,
                       std::shared_ptr<GradScaler> scaler = nullptr, bool device_placement = true);
  AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer, std::shared_ptr<GradientState> gradient_state,
                       std::shared_ptr<GradScaler> scaler = nullptr, bool device_placement = true);

  /// Nothing while gradients are being accumulated; else a step, or with a scaler none when gradients are not finite.
  void step();
  /// Likewise, after calling `closure` with gradients on; returns what it returned, or an undefined tensor where nothing was
  /// done. UsageError with a scaler: the gradients that a closure makes could not be checked before the step.
  at::Tensor step(const std::function<at::Tensor()>& closure);
  /// Nothing while gradients are being accumulated.
  void zero_grad(bool set_to_none = true);
  /// Takes the norm of the gradients of `parameters`, and leaves it to the next step to scale them down (ClipGradNormOptions::
  /// in_step). Returns the norm, or nothing where that step could not do it: `parameters` are not those that it steps, or no
  /// fused kernel does.
  std::optional<at::Tensor> clip_in_step(const std::vector<at::Tensor>& parameters, double max_norm,
                                         const ClipGradNormOptions& options) const;
  /// Scales them at once after all. UsageError when they have changed since.
  void clip_now() const;
  /// Whether gradients wait for a step that scales them.
  bool awaits_clip() const;
  /// Nothing that was left to a step while one was recorded has happened (see StepRecording).
  void forget_recorded_clip() const;
  /// Whether the last step was left out because gradients were infinite or no numbers.
  bool step_was_skipped() const;

  /// The state of what was prepared: see the functions of the same names in checkpoint/optimizer_state.h.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

  /// Whether the optimizer that it was prepared from was destroyed, or moved to another place.
  bool is_gone() const;

  /// What was prepared.
  torch::optim::Optimizer& optimizer() const;
  /// The parameter groups of what was prepared.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() const;
  /// Those of all groups.
  std::vector<at::Tensor> parameters() const;
  /// The scaler, or null.
  const std::shared_ptr<GradScaler>& scaler() const;
  /// True when both are of the same optimizer.
  bool operator==(const AcceleratedOptimizer& other) const;

 private:
  friend class Preparation;
  /// `check` is called before every step, and throws where there must be none.
  void check_steps(std::function<void(const AcceleratedOptimizer&)> check) const;
  /// `drop` is called when its gradients are dropped or set to zero: of sharded models there may be more than those it sees.
  void drop_with_gradients(std::function<void(const torch::optim::Optimizer&)> drop) const;

  struct Core;
  std::shared_ptr<Core> core_;
};

}  // namespace accelerate
