#include <accelerate/core/error.h>
#include <accelerate/training/lr_scheduler.h>
#include <torch/optim/optimizer.h>

namespace accelerate {

LRScheduler::LRScheduler(torch::optim::Optimizer& optimizer) : optimizer_(optimizer), base_lrs_(current_lrs()) {
  if (base_lrs_.empty()) throw UsageError("The scheduler's optimizer has no parameter groups: expected at least one.");
  last_lrs_ = base_lrs_;
}

LRScheduler::~LRScheduler() = default;

void LRScheduler::start() {
  started_ = true;
  initial_step();
}

void LRScheduler::initial_step() {
  step_count_ = 0;
  is_initial_ = true;
  try {
    step();
  } catch (...) {
    is_initial_ = false;
    throw;
  }
  is_initial_ = false;
}

void LRScheduler::step() {
  if (!started_)
    throw UsageError("A scheduler was stepped before start() was called. Call start() at the end of its constructor.");
  ++step_count_;
  try {
    update_lr(std::nullopt);
  } catch (...) {
    --step_count_;
    throw;
  }
}

void LRScheduler::step(double epoch) {
  throw UsageError("step(" + std::to_string(epoch) +
                   "): this scheduler counts its steps itself; call step() without an argument.");
}

void LRScheduler::update_lr(std::optional<int64_t> epoch) {
  const auto before = last_epoch_;
  try {
    last_epoch_ = epoch ? *epoch : last_epoch_ + 1;
    set_lrs(epoch ? closed_form_lr() : get_lr());
  } catch (...) {
    last_epoch_ = before;
    throw;
  }
}

void LRScheduler::set_lrs(const std::vector<double>& rates) {
  auto& groups = optimizer_.param_groups();
  if (rates.size() != groups.size()) {
    throw UsageError(
        "A scheduler returned " + std::to_string(rates.size()) + " learning rates for the " + std::to_string(groups.size()) +
        " parameter groups of its optimizer: expected one for each. Add the groups " + "before making the scheduler.");
  }
  for (size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(rates[i]);
  last_lrs_ = current_lrs();
}

std::vector<double> LRScheduler::begin_again(const std::vector<double>& initial) {
  base_lrs_ = initial;
  last_epoch_ = -1;
  initial_step();
  return base_lrs_;
}

std::vector<double> LRScheduler::current_lrs() const {
  std::vector<double> rates;
  for (const auto& group : optimizer_.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

std::vector<double> LRScheduler::scaled(std::vector<double> rates, double factor) {
  for (auto& rate : rates) rate *= factor;
  return rates;
}

void LRScheduler::visit_state(StateFields& fields) {
  fields("base_lrs", base_lrs_);
  fields("last_epoch", last_epoch_);
  fields("_step_count", step_count_);
  fields.constant("_is_initial", false);
  fields.constant("_get_lr_called_within_step", false);
  fields("_last_lr", last_lrs_);
}

StateDict LRScheduler::group_fields(size_t group) const {
  return group < base_lrs_.size() ? StateDict{{"initial_lr", base_lrs_[group]}} : StateDict();
}

StateDict LRScheduler::state_dict() const {
  StateFields fields;
  // One list of the variables serves both ways; this way it only looks.
  const_cast<LRScheduler*>(this)->visit_state(fields);
  return fields.take();
}

StateFields LRScheduler::read_state(const StateDict& state) {
  if (!state.contains("_schedulers")) state.at("last_epoch");
  const auto groups = optimizer_.param_groups().size();
  for (const auto* name : {"base_lrs", "_last_lr"}) {
    if (!state.contains(name) || state.at(name).kind() != Value::Kind::list) continue;
    const auto saved = state.at(name).as<Value::List>().size();
    if (saved == groups) continue;
    throw UsageError("The scheduler state is for " + std::to_string(saved) + " parameter groups (" + name + "=" +
                     to_string(state.at(name)) + "), but its optimizer has " + std::to_string(groups) + ".");
  }
  StateFields fields(state);
  visit_state(fields);
  return fields;
}

void LRScheduler::load_state_dict(const StateDict& state) { read_state(state).commit(); }

}  // namespace accelerate
