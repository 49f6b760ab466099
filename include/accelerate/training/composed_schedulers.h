#pragma once

#include <accelerate/training/lr_scheduler.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

// Schedulers made of schedulers. All belong to one optimizer, whose rates before the first of them was made are those that all
// start from. What is given by reference must outlive what is made of it.
namespace accelerate {

using SchedulerReferences = std::vector<std::reference_wrapper<LRScheduler>>;
using SchedulerPointers = std::vector<std::shared_ptr<LRScheduler>>;

/// What SequentialLR and ChainedScheduler have in common.
class ComposedScheduler : public LRScheduler {
 public:
  /// What all of them keep there; what is kept by several, as the one that was made last has it.
  StateDict group_fields(size_t group) const override;

 protected:
  ComposedScheduler(const char* name, torch::optim::Optimizer& optimizer, SchedulerPointers schedulers);
  static SchedulerPointers pointers_to(const SchedulerReferences& schedulers);
  static torch::optim::Optimizer& optimizer_of_first(const SchedulerPointers& schedulers);

  const SchedulerPointers& schedulers() const { return schedulers_; }
  /// Lets all that are as new start from the same rates, then does what `begin` does. Ends the constructor.
  void compose();
  void visit_schedulers(StateFields& fields);
  void visit_last_lrs(StateFields& fields) { fields("_last_lr", last_lrs_); }

  // For the derived classes, which may not touch those of another scheduler.
  void remember_lrs(const std::vector<double>& rates) { last_lrs_ = rates; }
  int64_t& epoch() { return last_epoch_; }
  void undo_counts();
  static void take_initial_step(LRScheduler& scheduler) { scheduler.initial_step(); }
  static void enter(LRScheduler& scheduler) { scheduler.update_lr(0); }
  void set_optimizer_lrs(const std::vector<double>& rates) { set_lrs(rates); }

 private:
  /// What the constructor does to the schedulers, which start from the rates `initial`.
  virtual void begin(const std::vector<double>& initial) = 0;
  std::vector<double> begin_schedulers(std::vector<double> initial);
  SchedulerPointers in_order_of_making() const;

  std::vector<double> get_lr() final;
  void update_lr(std::optional<int64_t> epoch) final;
  std::vector<double> begin_again(const std::vector<double>& initial) final;
  bool is_fresh() const override;
  void undo_count() final { undo_counts(); }
  const LRScheduler& first_made() const final;

  const char* name_;
  SchedulerPointers schedulers_;
};

/// One scheduler after the other: the next one begins when the number of steps reaches its milestone.
///
///   accelerate::LinearLR warmup(adamw, {.start_factor = 0.1, .total_iters = 20});
///   accelerate::CosineAnnealingLR cosine(adamw, {.T_max = 80});
///   accelerate::SequentialLR scheduler(adamw, {warmup, cosine}, {20});
class SequentialLR final : public ComposedScheduler {
 public:
  /// There is one milestone less than there are schedulers, and they do not decrease.
  SequentialLR(torch::optim::Optimizer& optimizer, const SchedulerReferences& schedulers, std::vector<int64_t> milestones);
  SequentialLR(torch::optim::Optimizer& optimizer, SchedulerPointers schedulers, std::vector<int64_t> milestones);
  void step() override;
  using LRScheduler::step;

 private:
  size_t index_at(int64_t epoch) const;
  void begin(const std::vector<double>& initial) override;
  bool is_fresh() const override { return last_epoch() == 0; }
  void visit_state(StateFields& fields) override;
  std::vector<int64_t> milestones_;
};

/// All of the schedulers at every step, one after the other.
class ChainedScheduler final : public ComposedScheduler {
 public:
  explicit ChainedScheduler(const SchedulerReferences& schedulers);
  explicit ChainedScheduler(SchedulerPointers schedulers);
  void step() override;
  using LRScheduler::step;

 private:
  void begin(const std::vector<double>& initial) override;
  void visit_state(StateFields& fields) override;
};

}  // namespace accelerate
