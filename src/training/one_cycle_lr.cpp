#include <accelerate/core/error.h>
#include <accelerate/training/one_cycle_lr.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <numbers>
#include <tuple>

namespace accelerate {

namespace {

using torch::optim::OptimizerOptions;

std::string cycle_number(double number) { return to_string(Value(number)); }

int64_t cycle_length(const OneCycleLROptions& options) {
  const auto positive = [](const char* name, int64_t number) {
    if (number < 1)
      throw UsageError("OneCycleLR: " + std::string(name) + "=" + std::to_string(number) + ": expected at least 1.");
    return number;
  };
  if (options.total_steps) return positive("total_steps", *options.total_steps);
  if (options.epochs && options.steps_per_epoch) {
    return positive("epochs", *options.epochs) * positive("steps_per_epoch", *options.steps_per_epoch);
  }
  throw UsageError("OneCycleLR needs total_steps, or epochs and steps_per_epoch.");
}

std::vector<double> cycle_values_of_groups(const char* name, const PerGroup& given, size_t groups) {
  if (given.values.size() == groups) return given.values;
  if (given.values.size() == 1) return std::vector<double>(groups, given.values.front());
  throw UsageError("OneCycleLR: " + std::string(name) + " has " + std::to_string(given.values.size()) + " values for " +
                   std::to_string(groups) + " parameter groups: expected one, or one for each group.");
}

bool cycles_betas(const OptimizerOptions& options) {
  return dynamic_cast<const torch::optim::AdamOptions*>(&options) || dynamic_cast<const torch::optim::AdamWOptions*>(&options);
}

template <class Options>
bool set_beta1(OptimizerOptions& options, double beta1) {
  auto* adam = dynamic_cast<Options*>(&options);
  if (adam) std::get<0>(adam->betas()) = beta1;
  return adam != nullptr;
}

template <class Options>
bool set_plain_momentum(OptimizerOptions& options, double momentum) {
  auto* plain = dynamic_cast<Options*>(&options);
  if (plain) plain->momentum(momentum);
  return plain != nullptr;
}

void set_cycled_momentum(OptimizerOptions& options, double momentum) {
  using namespace torch::optim;
  if (set_beta1<AdamOptions>(options, momentum) || set_beta1<AdamWOptions>(options, momentum) ||
      set_plain_momentum<SGDOptions>(options, momentum) || set_plain_momentum<RMSpropOptions>(options, momentum)) {
    return;
  }
  throw UsageError("OneCycleLR: cycle_momentum supports SGD, RMSprop, Adam and AdamW only: set .cycle_momentum = false.");
}

}  // namespace

OneCycleLR::OneCycleLR(torch::optim::Optimizer& optimizer, const OneCycleLROptions& options)
    : LRScheduler(optimizer),
      total_steps_(cycle_length(options)),
      anneal_strategy_(options.anneal_strategy == AnnealStrategy::cos ? "cos" : "linear"),
      cycle_momentum_(options.cycle_momentum) {
  if (!(options.pct_start >= 0 && options.pct_start <= 1)) {
    throw UsageError("OneCycleLR: pct_start=" + cycle_number(options.pct_start) + ": expected between 0 and 1.");
  }
  set_phases(options.pct_start, options.three_phase);
  set_bounds(options);
  use_beta1_ = cycle_momentum_ && cycles_betas(optimizer.param_groups().front().options());
  base_lrs_ = initial_lrs();
  start();
}

void OneCycleLR::set_phases(double pct_start, bool three_phase) {
  const auto total = static_cast<double>(total_steps_);
  phases_ = {{pct_start * total - 1, "initial_lr", "max_lr", "max_momentum", "base_momentum"}};
  if (three_phase) {
    phases_.push_back({2 * pct_start * total - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum"});
    phases_.push_back({total - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum"});
  } else {
    phases_.push_back({total - 1, "max_lr", "min_lr", "base_momentum", "max_momentum"});
  }
}

void OneCycleLR::set_bounds(const OneCycleLROptions& options) {
  const auto groups = optimizer().param_groups().size();
  const auto max_lrs = cycle_values_of_groups("max_lr", options.max_lr, groups);
  const auto base_momentums = cycle_values_of_groups("base_momentum", options.base_momentum, groups);
  const auto max_momentums = cycle_values_of_groups("max_momentum", options.max_momentum, groups);
  for (size_t i = 0; i < groups; ++i) {
    const double initial = max_lrs[i] / options.div_factor;
    bounds_.push_back({initial, max_lrs[i], initial / options.final_div_factor, base_momentums[i], max_momentums[i]});
  }
}

double OneCycleLR::Bounds::named(const std::string& name) const {
  if (name == "initial_lr") return initial_lr;
  if (name == "max_lr") return max_lr;
  if (name == "min_lr") return min_lr;
  return name == "base_momentum" ? base_momentum : max_momentum;
}

std::vector<double> OneCycleLR::initial_lrs() const {
  std::vector<double> rates;
  for (const auto& bounds : bounds_) rates.push_back(bounds.initial_lr);
  return rates;
}

double OneCycleLR::anneal(double start, double end, double part) const {
  if (anneal_strategy_ == "linear") return (end - start) * part + start;
  return end + (start - end) / 2.0 * (std::cos(std::numbers::pi * part) + 1);
}

std::vector<double> OneCycleLR::get_lr() {
  if (last_epoch() > total_steps_) {
    throw UsageError("OneCycleLR: tried to step " + std::to_string(last_epoch()) + " times, but total_steps is " +
                     std::to_string(total_steps_) + ". Raise total_steps.");
  }
  const auto step = static_cast<double>(last_epoch());
  size_t phase = 0;
  while (phase + 1 < phases_.size() && step > phases_[phase].end_step) ++phase;
  const double begin = phase == 0 ? 0.0 : phases_[phase - 1].end_step;
  const double length = phases_[phase].end_step - begin;
  // A phase without a step in it is over.
  const double part = length == 0 ? 1.0 : (step - begin) / length;

  auto& groups = optimizer().param_groups();
  const auto& ends = phases_[phase];
  std::vector<double> rates;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    rates.push_back(anneal(bounds_[i].named(ends.start_lr), bounds_[i].named(ends.end_lr), part));
    if (!cycle_momentum_ || i >= groups.size()) continue;
    set_cycled_momentum(groups[i].options(),
                        anneal(bounds_[i].named(ends.start_momentum), bounds_[i].named(ends.end_momentum), part));
  }
  return rates;
}

std::vector<double> OneCycleLR::begin_again(const std::vector<double>&) { return LRScheduler::begin_again(initial_lrs()); }

void OneCycleLR::visit_phases(StateFields& fields) {
  fields(
      "_schedule_phases",
      [&] {
        Value::List list;
        for (size_t i = 0; i < phases_.size(); ++i) {
          const auto& [end, start_lr, end_lr, start_momentum, end_momentum] = phases_[i];
          // Python's last one is a whole number.
          const Value end_step = i + 1 < phases_.size() ? Value(end) : Value(static_cast<int64_t>(end));
          list.push_back(StateDict{{"end_step", end_step},
                                   {"start_lr", start_lr},
                                   {"end_lr", end_lr},
                                   {"start_momentum", start_momentum},
                                   {"end_momentum", end_momentum}});
        }
        return list;
      },
      [&](const Value& value) {
        std::vector<Phase> phases;
        for (const auto& phase : value.as<Value::List>()) {
          const auto text = [&](const char* name) { return phase[name].get<std::string>(); };
          phases.push_back(
              {phase["end_step"].get<double>(), text("start_lr"), text("end_lr"), text("start_momentum"), text("end_momentum")});
        }
        if (phases.empty()) throw UsageError("no phases: expected two or three.");
        return [this, phases = std::move(phases)] { phases_ = phases; };
      });
}

StateDict OneCycleLR::group_fields(size_t group) const {
  if (group >= bounds_.size()) return {};
  const Bounds& bounds = bounds_[group];
  StateDict fields = {{"initial_lr", bounds.initial_lr}, {"max_lr", bounds.max_lr}, {"min_lr", bounds.min_lr}};
  if (!cycle_momentum_) return fields;
  fields["max_momentum"] = bounds.max_momentum;
  fields["base_momentum"] = bounds.base_momentum;
  return fields;
}

void OneCycleLR::visit_state(StateFields& fields) {
  fields("total_steps", total_steps_);
  visit_phases(fields);
  fields("_anneal_func_type", anneal_strategy_);
  fields("cycle_momentum", cycle_momentum_);
  if (cycle_momentum_) fields("use_beta1", use_beta1_);
  LRScheduler::visit_state(fields);
}

}  // namespace accelerate
