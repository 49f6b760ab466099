#include <accelerate/core/error.h>
#include <accelerate/training/accelerated_scheduler.h>
#include <accelerate/training/lr_scheduler.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <algorithm>
#include <utility>

#include "rendezvous/torch_private_access.h"
#include "training/step_recording.h"

namespace accelerate {

using namespace detail;

/// The three kinds of schedulers, as one.
class AcceleratedScheduler::Inner {
 public:
  virtual ~Inner() = default;
  virtual void step() = 0;
  virtual void step(double metric_or_epoch) = 0;
  /// Whether a step is left in a schedule of a given length.
  virtual bool has_steps_left() const { return true; }
  virtual std::vector<double> get_last_lr(const torch::optim::Optimizer* optimizer) const = 0;
  virtual StateDict state_dict(const torch::optim::Optimizer* optimizer) const = 0;
  virtual void load_state_dict(const StateDict& state) = 0;
  virtual StateDict group_fields(size_t) const { return {}; }
  virtual torch::optim::Optimizer* optimizer_among(const std::vector<torch::optim::Optimizer*>& candidates) const = 0;
};

namespace {

using torch::optim::ReduceLROnPlateauScheduler;

/// A pointer to what someone else owns.
template <class T>
std::shared_ptr<T> borrowed_scheduler(T& object) {
  return std::shared_ptr<T>(std::shared_ptr<void>(), &object);
}

Value::List list_of_rates(const std::vector<double>& rates) { return Value::List(rates.begin(), rates.end()); }

class OwnScheduler final : public AcceleratedScheduler::Inner {
 public:
  explicit OwnScheduler(std::shared_ptr<LRScheduler> scheduler) : scheduler_(std::move(scheduler)) {}
  void step() override { scheduler_->step(); }
  void step(double epoch) override { scheduler_->step(epoch); }
  bool has_steps_left() const override {
    const auto total = scheduler_->total_steps();
    return !total || scheduler_->step_count() <= *total;
  }
  std::vector<double> get_last_lr(const torch::optim::Optimizer*) const override { return scheduler_->get_last_lr(); }
  StateDict state_dict(const torch::optim::Optimizer*) const override { return scheduler_->state_dict(); }
  void load_state_dict(const StateDict& state) override { scheduler_->load_state_dict(state); }
  StateDict group_fields(size_t group) const override { return scheduler_->group_fields(group); }
  torch::optim::Optimizer* optimizer_among(const std::vector<torch::optim::Optimizer*>& candidates) const override {
    return optimizer_of(*scheduler_, candidates);
  }

 private:
  std::shared_ptr<LRScheduler> scheduler_;
};

class TorchScheduler final : public AcceleratedScheduler::Inner {
 public:
  explicit TorchScheduler(std::shared_ptr<torch::optim::LRScheduler> scheduler) : scheduler_(std::move(scheduler)) {}
  void step() override { scheduler_->step(); }
  void step(double epoch) override {
    throw UsageError("step(" + std::to_string(epoch) + "): a scheduler of torch::optim counts its steps itself; call step() " +
                     "without an argument.");
  }
  std::vector<double> get_last_lr(const torch::optim::Optimizer*) const override {
    return torch_private::current_lrs_of(*scheduler_);
  }
  StateDict state_dict(const torch::optim::Optimizer*) const override {
    // LibTorch decides on a rate first and counts then, Python the other way round: what the next step will do is the same when
    // Python's count is one behind. It also counts the step that its constructor takes.
    const int64_t steps = torch_private::step_count_of(*scheduler_);
    return {{"last_epoch", steps - 1},
            {"_step_count", steps},
            {"_last_lr", list_of_rates(torch_private::current_lrs_of(*scheduler_))}};
  }
  void load_state_dict(const StateDict& state) override {
    torch_private::step_count_of(*scheduler_) = static_cast<unsigned>(state.at("last_epoch").get<int64_t>() + 1);
  }
  torch::optim::Optimizer* optimizer_among(const std::vector<torch::optim::Optimizer*>& candidates) const override {
    return optimizer_of(*scheduler_, candidates);
  }

 private:
  std::shared_ptr<torch::optim::LRScheduler> scheduler_;
};

class PlateauScheduler final : public AcceleratedScheduler::Inner {
 public:
  explicit PlateauScheduler(std::shared_ptr<ReduceLROnPlateauScheduler> scheduler) : scheduler_(std::move(scheduler)) {}
  void step() override {
    throw UsageError("ReduceLROnPlateau: step() needs the metric that it monitors, as in step(validation_loss).");
  }
  void step(double metric) override { scheduler_->step(static_cast<float>(metric)); }
  std::vector<double> get_last_lr(const torch::optim::Optimizer* optimizer) const override {
    std::vector<double> rates;
    if (!optimizer)
      throw UsageError("ReduceLROnPlateau: get_last_lr() needs the scheduler's optimizer, which was not prepared with it.");
    for (const auto& group : optimizer->param_groups()) rates.push_back(group.options().get_lr());
    return rates;
  }
  StateDict state_dict(const torch::optim::Optimizer* optimizer) const override {
    const auto progress = torch_private::progress_of(*scheduler_);
    StateDict state = {{"last_epoch", progress.last_epoch},
                       {"best", progress.best},
                       {"cooldown_counter", progress.cooldown_counter},
                       {"num_bad_epochs", progress.num_bad_epochs}};
    if (optimizer) state["_last_lr"] = list_of_rates(get_last_lr(optimizer));
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    // All are read before one is set.
    const auto last_epoch = state.at("last_epoch").get<int>(), cooldown = state.at("cooldown_counter").get<int>(),
               bad = state.at("num_bad_epochs").get<int>();
    const auto best = state.at("best").get<float>();
    torch_private::progress_of(*scheduler_).last_epoch = last_epoch;
    torch_private::progress_of(*scheduler_).cooldown_counter = cooldown;
    torch_private::progress_of(*scheduler_).num_bad_epochs = bad;
    torch_private::progress_of(*scheduler_).best = best;
  }
  torch::optim::Optimizer* optimizer_among(const std::vector<torch::optim::Optimizer*>& candidates) const override {
    return optimizer_of(*scheduler_, candidates);
  }

 private:
  std::shared_ptr<ReduceLROnPlateauScheduler> scheduler_;
};

template <class T>
std::shared_ptr<T> scheduler_not_null(std::shared_ptr<T> scheduler) {
  if (!scheduler) throw UsageError("prepare was given a null scheduler.");
  return scheduler;
}

}  // namespace

struct AcceleratedScheduler::State {
  std::shared_ptr<Inner> inner;
  SchedulerRule rule;
  torch::optim::Optimizer* optimizer = nullptr;
};

AcceleratedScheduler::AcceleratedScheduler(std::shared_ptr<Inner> inner, SchedulerRule rule)
    : state_(std::make_shared<State>(State{std::move(inner), std::move(rule)})) {
  if (state_->rule.step_with_optimizer && !state_->rule.gradients) {
    throw UsageError("A scheduler that steps with its optimizer needs a GradientState.");
  }
  std::vector<torch::optim::Optimizer*> candidates;
  for (const auto& followed : state_->rule.optimizers) candidates.push_back(followed.optimizer);
  state_->optimizer = state_->inner->optimizer_among(candidates);
}

AcceleratedScheduler::AcceleratedScheduler(std::shared_ptr<LRScheduler> scheduler, SchedulerRule rule)
    : AcceleratedScheduler(std::make_shared<OwnScheduler>(scheduler_not_null(std::move(scheduler))), std::move(rule)) {}
AcceleratedScheduler::AcceleratedScheduler(std::shared_ptr<torch::optim::LRScheduler> scheduler, SchedulerRule rule)
    : AcceleratedScheduler(std::make_shared<TorchScheduler>(scheduler_not_null(std::move(scheduler))), std::move(rule)) {}
AcceleratedScheduler::AcceleratedScheduler(std::shared_ptr<ReduceLROnPlateauScheduler> scheduler, SchedulerRule rule)
    : AcceleratedScheduler(std::make_shared<PlateauScheduler>(scheduler_not_null(std::move(scheduler))), std::move(rule)) {}
AcceleratedScheduler::AcceleratedScheduler(LRScheduler& scheduler, SchedulerRule rule)
    : AcceleratedScheduler(borrowed_scheduler(scheduler), std::move(rule)) {}
AcceleratedScheduler::AcceleratedScheduler(torch::optim::LRScheduler& scheduler, SchedulerRule rule)
    : AcceleratedScheduler(borrowed_scheduler(scheduler), std::move(rule)) {}
AcceleratedScheduler::AcceleratedScheduler(ReduceLROnPlateauScheduler& scheduler, SchedulerRule rule)
    : AcceleratedScheduler(borrowed_scheduler(scheduler), std::move(rule)) {}

void AcceleratedScheduler::step() {
  if (auto* recording = StepRecording::current())
    return recording->add({.run = [scheduler = *this]() mutable { scheduler.step(); }, .asks_for_result = true});
  take_steps([this] { state_->inner->step(); });
}

void AcceleratedScheduler::step(double metric_or_epoch) {
  if (StepRecording::current()) throw NotRecordable("a scheduler is given a number, which would be the same at every replay");
  take_steps([this, metric_or_epoch] { state_->inner->step(metric_or_epoch); });
}

void AcceleratedScheduler::take_steps(const std::function<void()>& step) {
  const auto& rule = state_->rule;
  if (!rule.step_with_optimizer) return step();
  if (!rule.gradients->sync_gradients()) return;
  for (const auto& followed : rule.optimizers) {
    if (followed.step_was_skipped && followed.step_was_skipped()) return;
  }
  if (rule.split_batches) return step();
  for (int i = 0; i < rule.num_processes; ++i) {
    // The number of processes may not divide that of the steps.
    if (state_->inner->has_steps_left()) step();
  }
}

std::vector<double> AcceleratedScheduler::get_last_lr() const { return state_->inner->get_last_lr(state_->optimizer); }

StateDict AcceleratedScheduler::state_dict() const { return state_->inner->state_dict(state_->optimizer); }

void AcceleratedScheduler::load_state_dict(const StateDict& state) { state_->inner->load_state_dict(state); }

StateDict AcceleratedScheduler::group_fields(size_t group) const { return state_->inner->group_fields(group); }

torch::optim::Optimizer* AcceleratedScheduler::optimizer() const { return state_->optimizer; }

namespace {

torch::optim::Optimizer* first_optimizer(const std::vector<torch::optim::Optimizer*>& candidates,
                                         const std::function<bool(torch::optim::Optimizer&)>& holds) {
  const auto found = std::find_if(candidates.begin(), candidates.end(), [&](auto* each) { return each && holds(*each); });
  return found == candidates.end() ? nullptr : *found;
}

}  // namespace

torch::optim::Optimizer* optimizer_of(const LRScheduler& scheduler, const std::vector<torch::optim::Optimizer*>& candidates) {
  return first_optimizer(candidates, [&](auto& each) { return &each == &scheduler.optimizer(); });
}

torch::optim::Optimizer* optimizer_of(const torch::optim::LRScheduler& scheduler,
                                      const std::vector<torch::optim::Optimizer*>& candidates) {
  return first_optimizer(candidates, [&](auto& each) { return torch_private::sets_rates_of(scheduler, each); });
}

torch::optim::Optimizer* optimizer_of(ReduceLROnPlateauScheduler& scheduler,
                                      const std::vector<torch::optim::Optimizer*>& candidates) {
  return first_optimizer(candidates, [&](auto& each) { return torch_private::sets_rates_of(scheduler, each); });
}

}  // namespace accelerate
