#pragma once

#include <accelerate/checkpoint/state_fields.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace accelerate {

/// Sets the learning rate of each parameter group of an optimizer as training proceeds. Bound to the optimizer, which must
/// outlive it; neither is ever moved.
///
/// A custom one implements `get_lr` and calls `start` at the end of its constructor:
///
///   class Halving final : public accelerate::LRScheduler {
///    public:
///     explicit Halving(torch::optim::Optimizer& optimizer) : LRScheduler(optimizer) { start(); }
///
///    private:
///     std::vector<double> get_lr() override { return scaled(current_lrs(), is_initial() ? 1 : 0.5); }
///   };
class LRScheduler {
 public:
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;
  virtual ~LRScheduler();

  /// Sets the learning rates of the next step. Call it after the optimizer's.
  virtual void step();
  /// The same at a point in time that may lie between two steps. UsageError from schedulers that cannot.
  virtual void step(double epoch);

  /// The rates as the last step has set them, one for each parameter group.
  const std::vector<double>& get_last_lr() const { return last_lrs_; }
  /// The rates that the optimizer had when the scheduler was made.
  const std::vector<double>& base_lrs() const { return base_lrs_; }
  /// How many steps have been taken.
  int64_t last_epoch() const { return last_epoch_; }
  /// How often `step` was called, the constructor's own call included.
  int64_t step_count() const { return step_count_; }
  /// The number of steps after which `step` must not be called any more; nothing when there is no end.
  virtual std::optional<int64_t> total_steps() const { return std::nullopt; }
  torch::optim::Optimizer& optimizer() const { return optimizer_; }
  /// What Python's scheduler keeps among the options of parameter group `group`, and looks for there.
  virtual StateDict group_fields(size_t group) const;

  /// What Python's scheduler of the same name writes and reads.
  StateDict state_dict() const;
  /// Continues from such a state. As in Python the optimizer's rates stay as they are: they are part of its own state.
  /// UsageError, with nothing changed, when the state is not one of this kind of scheduler or of another number of groups.
  void load_state_dict(const StateDict& state);

 protected:
  explicit LRScheduler(torch::optim::Optimizer& optimizer);

  /// Sets the rates of step 0. A constructor cannot call what a derived class overrides, so that class does.
  void start();
  /// The rates of `last_epoch`, one for each group; most are made from the present ones, so that schedulers can be combined.
  virtual std::vector<double> get_lr() = 0;
  /// The same from base_lrs alone, where there is such a formula: how a SequentialLR enters a scheduler.
  virtual std::vector<double> closed_form_lr() { return get_lr(); }
  /// Visits what belongs to the state. A derived class visits its own variables, then these.
  virtual void visit_state(StateFields& fields);

  /// In the step that `start` takes.
  bool is_initial() const { return is_initial_; }
  /// The present rates of the optimizer.
  std::vector<double> current_lrs() const;
  static std::vector<double> scaled(std::vector<double> rates, double factor);

 private:
  friend class ComposedScheduler;
  friend class CosineAnnealingWarmRestarts;
  friend class OneCycleLR;

  /// Moves on to `epoch`, or by one.
  virtual void update_lr(std::optional<int64_t> epoch);
  void set_lrs(const std::vector<double>& rates);
  /// Takes the step of the constructor again.
  virtual void initial_step();
  /// As if just made, when the first scheduler of this optimizer found the rates `initial`. Returns the rates that
  /// schedulers made after this one start from.
  virtual std::vector<double> begin_again(const std::vector<double>& initial);
  /// No step was taken since it was made.
  virtual bool is_fresh() const { return last_epoch_ == 0; }
  /// Takes the step of the constructor back, as far as counting goes.
  virtual void undo_count() { --last_epoch_; }
  /// This one, or of what it is made of the one that was made first.
  virtual const LRScheduler& first_made() const { return *this; }
  /// A state that was read and checked, and is not in force before it is committed.
  StateFields read_state(const StateDict& state);

  torch::optim::Optimizer& optimizer_;
  const std::chrono::steady_clock::time_point made_ = std::chrono::steady_clock::now();
  std::vector<double> base_lrs_;
  std::vector<double> last_lrs_;
  int64_t last_epoch_ = -1;
  int64_t step_count_ = 0;
  bool is_initial_ = false;
  bool started_ = false;
};

}  // namespace accelerate
