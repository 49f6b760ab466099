#pragma once

#include <accelerate/distributed/value.h>
#include <accelerate/training/gradient_state.h>

#include <functional>
#include <memory>
#include <vector>

namespace torch::optim {
class LRScheduler;
class Optimizer;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim

namespace accelerate {

class LRScheduler;

/// An optimizer whose steps a scheduler follows.
struct FollowedOptimizer {
  torch::optim::Optimizer* optimizer = nullptr;
  /// Whether its last step was left out, because gradients overflowed.
  std::function<bool()> step_was_skipped;
};

/// When a prepared scheduler steps.
struct SchedulerRule {
  /// Says when gradients are all-reduced, and steps are taken at all.
  std::shared_ptr<const GradientState> gradients;
  std::vector<FollowedOptimizer> optimizers;
  int num_processes = 1;
  /// A step of all processes together is a step of one: batches were split, not multiplied.
  bool split_batches = false;
  /// False: every call is one step.
  bool step_with_optimizer = true;
};

/// A scheduler that steps when its optimizers do. A step of P processes counts as P, so schedules are sized for one process;
/// it does nothing while gradients are accumulated, and nothing after a step that was skipped. Copies are the same scheduler.
/// What is given as an lvalue must outlive it.
class AcceleratedScheduler {
 public:
  AcceleratedScheduler(LRScheduler& scheduler, SchedulerRule rule);
  AcceleratedScheduler(torch::optim::LRScheduler& scheduler, SchedulerRule rule);
  AcceleratedScheduler(torch::optim::ReduceLROnPlateauScheduler& scheduler, SchedulerRule rule);
  AcceleratedScheduler(std::shared_ptr<LRScheduler> scheduler, SchedulerRule rule);
  AcceleratedScheduler(std::shared_ptr<torch::optim::LRScheduler> scheduler, SchedulerRule rule);
  AcceleratedScheduler(std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> scheduler, SchedulerRule rule);

  /// UsageError from a scheduler that needs a metric.
  void step();
  /// The metric that a ReduceLROnPlateauScheduler watches, or the epoch for a scheduler that can step to one.
  void step(double metric_or_epoch);

  /// The rates as the last step has set them; of a scheduler of torch::optim, the present ones of its optimizer.
  std::vector<double> get_last_lr() const;
  /// Of a scheduler of torch::optim: what changes from step to step, under the names of Python.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

  /// See LRScheduler; nothing for schedulers of torch::optim.
  StateDict group_fields(size_t group) const;

  /// The optimizer whose rates it sets, or null when that is none of those it follows.
  torch::optim::Optimizer* optimizer() const;

  /// True when both are the same scheduler.
  bool operator==(const AcceleratedScheduler& other) const = default;

  class Inner;

 private:
  struct State;
  AcceleratedScheduler(std::shared_ptr<Inner> inner, SchedulerRule rule);
  void take_steps(const std::function<void()>& step);
  std::shared_ptr<State> state_;
};

/// Which of `candidates` a scheduler sets the rates of; null when it is none of them. Those of torch::optim do not say, so
/// their effect on a rate is looked at, and undone.
torch::optim::Optimizer* optimizer_of(const LRScheduler& scheduler, const std::vector<torch::optim::Optimizer*>& candidates);
torch::optim::Optimizer* optimizer_of(const torch::optim::LRScheduler& scheduler,
                                      const std::vector<torch::optim::Optimizer*>& candidates);
torch::optim::Optimizer* optimizer_of(torch::optim::ReduceLROnPlateauScheduler& scheduler,
                                      const std::vector<torch::optim::Optimizer*>& candidates);

}  // namespace accelerate
