#include <accelerate/core/error.h>
#include <accelerate/training/composed_schedulers.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

namespace accelerate {

ComposedScheduler::ComposedScheduler(const char* name, torch::optim::Optimizer& optimizer, SchedulerPointers schedulers)
    : LRScheduler(optimizer), name_(name), schedulers_(std::move(schedulers)) {
  for (size_t i = 0; i < schedulers_.size(); ++i) {
    if (!schedulers_[i]) throw UsageError(std::string(name) + ": scheduler " + std::to_string(i) + " is a null pointer.");
    if (&schedulers_[i]->optimizer() == &optimizer) continue;
    throw UsageError(std::string(name) + ": scheduler " + std::to_string(i) +
                     " belongs to a different optimizer: all schedulers must share one optimizer.");
  }
}

SchedulerPointers ComposedScheduler::pointers_to(const SchedulerReferences& schedulers) {
  SchedulerPointers pointers;
  for (auto& scheduler : schedulers) pointers.emplace_back(std::shared_ptr<void>(), &scheduler.get());
  return pointers;
}

torch::optim::Optimizer& ComposedScheduler::optimizer_of_first(const SchedulerPointers& schedulers) {
  if (schedulers.empty() || !schedulers.front()) throw UsageError("ChainedScheduler needs at least one scheduler.");
  return schedulers.front()->optimizer();
}

void ComposedScheduler::compose() {
  auto initial = first_made().base_lrs_;
  const auto& all = schedulers_;
  // Python's parameter groups remember the rates that the first scheduler found; LibTorch's do not, so schedulers made after
  // it started from what it had left. Making them all again in the order in which they were made is the same.
  if (std::all_of(all.begin(), all.end(), [](const auto& each) { return each->is_fresh(); })) {
    set_lrs(initial);
    initial = begin_schedulers(initial);
  }
  begin(initial);
}

SchedulerPointers ComposedScheduler::in_order_of_making() const {
  auto in_order = schedulers_;
  std::stable_sort(in_order.begin(), in_order.end(), [](const auto& a, const auto& b) { return a->made_ < b->made_; });
  return in_order;
}

std::vector<double> ComposedScheduler::begin_schedulers(std::vector<double> initial) {
  for (const auto& scheduler : in_order_of_making()) initial = scheduler->begin_again(initial);
  return initial;
}

StateDict ComposedScheduler::group_fields(size_t group) const {
  StateDict fields;
  for (const auto& scheduler : in_order_of_making()) {
    for (const auto& [name, value] : scheduler->group_fields(group)) fields[name] = value;
  }
  return fields;
}

std::vector<double> ComposedScheduler::begin_again(const std::vector<double>& initial) {
  auto after = begin_schedulers(initial);
  begin(after);
  return after;
}

const LRScheduler& ComposedScheduler::first_made() const {
  const auto earlier = [](const auto& a, const auto& b) { return a->first_made().made_ < b->first_made().made_; };
  return (*std::min_element(schedulers_.begin(), schedulers_.end(), earlier))->first_made();
}

bool ComposedScheduler::is_fresh() const {
  return std::all_of(schedulers_.begin(), schedulers_.end(), [](const auto& each) { return each->is_fresh(); });
}

void ComposedScheduler::undo_counts() {
  for (const auto& scheduler : schedulers_) scheduler->undo_count();
}

std::vector<double> ComposedScheduler::get_lr() { return current_lrs(); }

void ComposedScheduler::update_lr(std::optional<int64_t>) {
  throw UsageError("A " + std::string(name_) +
                   " within a SequentialLR can only be its first scheduler: list its schedulers instead.");
}

void ComposedScheduler::visit_schedulers(StateFields& fields) {
  fields(
      "_schedulers",
      [&] {
        Value::List states;
        for (const auto& scheduler : schedulers_) states.push_back(scheduler->state_dict());
        return states;
      },
      [&](const Value& value) {
        const auto& states = value.as<Value::List>();
        if (states.size() != schedulers_.size()) {
          throw UsageError(std::to_string(states.size()) + " schedulers, but this " + name_ + " has " +
                           std::to_string(schedulers_.size()) + ".");
        }
        std::vector<StateFields> read;
        for (size_t i = 0; i < states.size(); ++i) {
          read.push_back(schedulers_[i]->read_state(states[i].as<StateDict>()));
        }
        return [read = std::move(read)]() mutable {
          for (auto& each : read) each.commit();
        };
      });
}

SequentialLR::SequentialLR(torch::optim::Optimizer& optimizer, const SchedulerReferences& schedulers,
                           std::vector<int64_t> milestones)
    : SequentialLR(optimizer, pointers_to(schedulers), std::move(milestones)) {}

SequentialLR::SequentialLR(torch::optim::Optimizer& optimizer, SchedulerPointers all, std::vector<int64_t> milestones)
    : ComposedScheduler("SequentialLR", optimizer, std::move(all)), milestones_(std::move(milestones)) {
  if (schedulers().empty()) throw UsageError("SequentialLR needs at least one scheduler.");
  if (milestones_.size() + 1 != schedulers().size()) {
    throw UsageError("SequentialLR: " + std::to_string(milestones_.size()) + " milestones for " +
                     std::to_string(schedulers().size()) + " schedulers: expected one fewer than schedulers.");
  }
  if (!std::is_sorted(milestones_.begin(), milestones_.end())) {
    throw UsageError("SequentialLR: milestones must be in ascending order.");
  }
  compose();
}

size_t SequentialLR::index_at(int64_t epoch) const {
  return static_cast<size_t>(std::upper_bound(milestones_.begin(), milestones_.end(), epoch) - milestones_.begin());
}

void SequentialLR::begin(const std::vector<double>& initial) {
  // The schedulers have all taken their first step, of which only that of the first one may stay.
  epoch() = 0;
  set_optimizer_lrs(initial);
  undo_counts();
  auto& first = *schedulers()[index_at(0)];
  take_initial_step(first);
  remember_lrs(first.get_last_lr());
}

void SequentialLR::step() {
  const auto next = last_epoch() + 1;
  const auto index = index_at(next);
  auto& scheduler = *schedulers()[index];
  if (index > 0 && milestones_[index - 1] == next) {
    enter(scheduler);
  } else {
    scheduler.step();
  }
  epoch() = next;
  remember_lrs(scheduler.get_last_lr());
}

void SequentialLR::visit_state(StateFields& fields) {
  fields("_milestones", milestones_);
  fields("last_epoch", epoch());
  visit_last_lrs(fields);
  visit_schedulers(fields);
}

ChainedScheduler::ChainedScheduler(const SchedulerReferences& schedulers) : ChainedScheduler(pointers_to(schedulers)) {}

ChainedScheduler::ChainedScheduler(SchedulerPointers all) : ComposedScheduler("ChainedScheduler", optimizer_of_first(all), all) {
  compose();
}

void ChainedScheduler::begin(const std::vector<double>&) { remember_lrs(current_lrs()); }

void ChainedScheduler::step() {
  for (const auto& scheduler : schedulers()) scheduler->step();
  remember_lrs(current_lrs());
}

void ChainedScheduler::visit_state(StateFields& fields) {
  visit_last_lrs(fields);
  visit_schedulers(fields);
}

}  // namespace accelerate
