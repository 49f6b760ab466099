#include <accelerate/core/error.h>
#include <accelerate/training/torch_schedulers.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>

// Where PyTorch makes a rate from the present one, so do these, operation by operation: the results agree to the last digits,
// also when someone else changes the rate in between.
namespace accelerate {

namespace {

void expect_option(bool holds, const char* scheduler, const char* name, double given, const char* expected) {
  if (!holds) {
    throw UsageError(std::string(scheduler) + ": " + name + "=" + to_string(Value(given)) + ": expected " + expected + ".");
  }
}

std::vector<LambdaLR::Factor> one_for_each_group(const torch::optim::Optimizer& optimizer,
                                                 std::vector<LambdaLR::Factor> factors) {
  const auto groups = optimizer.param_groups().size();
  if (factors.size() != groups) {
    throw UsageError("lr_lambdas: " + std::to_string(factors.size()) + " functions for " + std::to_string(groups) +
                     " parameter groups: expected one for each, or one for all.");
  }
  for (const auto& factor : factors) {
    if (!factor) throw UsageError("lr_lambdas: an empty function.");
  }
  return factors;
}

/// Functions are not saved: the loading run makes the scheduler with the same ones.
void visit_lr_lambdas(StateFields& fields, size_t count) { fields.constant("lr_lambdas", Value::List(count, Value())); }

std::vector<LambdaLR::Factor> same_for_all_groups(const torch::optim::Optimizer& optimizer, const LambdaLR::Factor& factor) {
  return std::vector(optimizer.param_groups().size(), factor);
}

std::vector<double> times_functions(std::vector<double> rates, const std::vector<LambdaLR::Factor>& factors, int64_t step) {
  // Too few or too many are an error of whoever sets the rates, with a better message.
  for (size_t i = 0; i < std::min(rates.size(), factors.size()); ++i) rates[i] *= factors[i](step);
  return rates;
}

/// Where a cosine from `high` down to `low` is after `part` of it.
double cosine_between(double low, double high, double angle) { return low + (high - low) * (1 + std::cos(angle)) / 2; }

}  // namespace

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, Factor lr_lambda)
    : LambdaLR(optimizer, same_for_all_groups(optimizer, lr_lambda)) {}

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, std::vector<Factor> lr_lambdas)
    : LRScheduler(optimizer), lr_lambdas_(one_for_each_group(optimizer, std::move(lr_lambdas))) {
  start();
}

std::vector<double> LambdaLR::get_lr() { return times_functions(base_lrs(), lr_lambdas_, last_epoch()); }

void LambdaLR::visit_state(StateFields& fields) {
  LRScheduler::visit_state(fields);
  visit_lr_lambdas(fields, lr_lambdas_.size());
}

MultiplicativeLR::MultiplicativeLR(torch::optim::Optimizer& optimizer, LambdaLR::Factor lr_lambda)
    : MultiplicativeLR(optimizer, same_for_all_groups(optimizer, lr_lambda)) {}

MultiplicativeLR::MultiplicativeLR(torch::optim::Optimizer& optimizer, std::vector<LambdaLR::Factor> lr_lambdas)
    : LRScheduler(optimizer), lr_lambdas_(one_for_each_group(optimizer, std::move(lr_lambdas))) {
  start();
}

std::vector<double> MultiplicativeLR::get_lr() {
  return is_initial() ? current_lrs() : times_functions(current_lrs(), lr_lambdas_, last_epoch());
}

void MultiplicativeLR::visit_state(StateFields& fields) {
  LRScheduler::visit_state(fields);
  visit_lr_lambdas(fields, lr_lambdas_.size());
}

StepLR::StepLR(torch::optim::Optimizer& optimizer, StepLROptions options) : LRScheduler(optimizer), options_(options) {
  expect_option(options.step_size >= 1, "StepLR", "step_size", static_cast<double>(options.step_size), "at least 1");
  start();
}

std::vector<double> StepLR::get_lr() {
  const bool decays = last_epoch() != 0 && last_epoch() % options_.step_size == 0;
  return decays ? scaled(current_lrs(), options_.gamma) : current_lrs();
}

std::vector<double> StepLR::closed_form_lr() {
  return scaled(base_lrs(), std::pow(options_.gamma, static_cast<double>(last_epoch() / options_.step_size)));
}

void StepLR::visit_state(StateFields& fields) {
  fields("step_size", options_.step_size);
  fields("gamma", options_.gamma);
  LRScheduler::visit_state(fields);
}

MultiStepLR::MultiStepLR(torch::optim::Optimizer& optimizer, const MultiStepLROptions& options)
    : LRScheduler(optimizer), gamma_(options.gamma) {
  for (const auto milestone : options.milestones) ++milestones_[milestone];
  start();
}

std::vector<double> MultiStepLR::get_lr() {
  const auto milestone = milestones_.find(last_epoch());
  if (milestone == milestones_.end()) return current_lrs();
  return scaled(current_lrs(), std::pow(gamma_, static_cast<double>(milestone->second)));
}

std::vector<double> MultiStepLR::closed_form_lr() {
  int64_t passed = 0;
  for (const auto& [milestone, count] : milestones_) passed += milestone <= last_epoch() ? count : 0;
  return scaled(base_lrs(), std::pow(gamma_, static_cast<double>(passed)));
}

void MultiStepLR::visit_state(StateFields& fields) {
  // A Counter in Python: a dictionary of how often each is given, whose keys are numbers there and their digits here.
  fields(
      "milestones",
      [&] {
        StateDict counts;
        counts.set_numbered(true);
        for (const auto& [milestone, count] : milestones_) counts[std::to_string(milestone)] = count;
        return counts;
      },
      [&](const Value& value) {
        std::map<int64_t, int64_t> counts;
        for (const auto& [milestone, count] : value.as<StateDict>()) {
          int64_t step = 0;
          const auto [end, error] = std::from_chars(milestone.data(), milestone.data() + milestone.size(), step);
          if (error != std::errc() || end != milestone.data() + milestone.size()) {
            throw UsageError("the milestone \"" + milestone + "\": expected a number.");
          }
          counts[step] = count.get<int64_t>();
        }
        return [this, counts = std::move(counts)] { milestones_ = counts; };
      });
  fields("gamma", gamma_);
  LRScheduler::visit_state(fields);
}

ConstantLR::ConstantLR(torch::optim::Optimizer& optimizer, ConstantLROptions options)
    : LRScheduler(optimizer), options_(options) {
  expect_option(options.factor >= 0 && options.factor <= 1, "ConstantLR", "factor", options.factor, "between 0 and 1");
  start();
}

std::vector<double> ConstantLR::get_lr() {
  if (last_epoch() == 0) return scaled(current_lrs(), options_.factor);
  if (last_epoch() != options_.total_iters) return current_lrs();
  // What was multiplied by 0 cannot be divided back.
  return options_.factor == 0 ? base_lrs() : scaled(current_lrs(), 1.0 / options_.factor);
}

std::vector<double> ConstantLR::closed_form_lr() {
  const double rest = last_epoch() >= options_.total_iters ? 1 - options_.factor : 0;
  return scaled(base_lrs(), options_.factor + rest);
}

void ConstantLR::visit_state(StateFields& fields) {
  fields("factor", options_.factor);
  fields("total_iters", options_.total_iters);
  LRScheduler::visit_state(fields);
}

LinearLR::LinearLR(torch::optim::Optimizer& optimizer, LinearLROptions options) : LRScheduler(optimizer), options_(options) {
  expect_option(options.start_factor > 0 && options.start_factor <= 1, "LinearLR", "start_factor", options.start_factor,
                "more than 0 and at most 1");
  expect_option(options.end_factor >= 0 && options.end_factor <= 1, "LinearLR", "end_factor", options.end_factor,
                "between 0 and 1");
  expect_option(options.total_iters >= 1, "LinearLR", "total_iters", static_cast<double>(options.total_iters), "at least 1");
  start();
}

std::vector<double> LinearLR::get_lr() {
  if (last_epoch() == 0) return scaled(current_lrs(), options_.start_factor);
  if (is_initial() || last_epoch() > options_.total_iters) return current_lrs();
  const double rise = options_.end_factor - options_.start_factor;
  const double before =
      static_cast<double>(options_.total_iters) * options_.start_factor + static_cast<double>(last_epoch() - 1) * rise;
  return scaled(current_lrs(), 1.0 + rise / before);
}

std::vector<double> LinearLR::closed_form_lr() {
  const auto passed = static_cast<double>(std::min(options_.total_iters, last_epoch()));
  const double rise = options_.end_factor - options_.start_factor;
  return scaled(base_lrs(), options_.start_factor + rise * passed / static_cast<double>(options_.total_iters));
}

void LinearLR::visit_state(StateFields& fields) {
  fields("start_factor", options_.start_factor);
  fields("end_factor", options_.end_factor);
  fields("total_iters", options_.total_iters);
  LRScheduler::visit_state(fields);
}

ExponentialLR::ExponentialLR(torch::optim::Optimizer& optimizer, double gamma) : LRScheduler(optimizer), gamma_(gamma) {
  start();
}

std::vector<double> ExponentialLR::get_lr() { return is_initial() ? current_lrs() : scaled(current_lrs(), gamma_); }

std::vector<double> ExponentialLR::closed_form_lr() {
  return scaled(base_lrs(), std::pow(gamma_, static_cast<double>(last_epoch())));
}

void ExponentialLR::visit_state(StateFields& fields) {
  fields("gamma", gamma_);
  LRScheduler::visit_state(fields);
}

PolynomialLR::PolynomialLR(torch::optim::Optimizer& optimizer, PolynomialLROptions options)
    : LRScheduler(optimizer), options_(options) {
  expect_option(options.total_iters >= 1, "PolynomialLR", "total_iters", static_cast<double>(options.total_iters), "at least 1");
  start();
}

std::vector<double> PolynomialLR::get_lr() {
  if (is_initial() || last_epoch() > options_.total_iters) return current_lrs();
  const auto total = static_cast<double>(options_.total_iters);
  const double now = 1.0 - static_cast<double>(last_epoch()) / total;
  const double before = 1.0 - static_cast<double>(last_epoch() - 1) / total;
  return scaled(current_lrs(), std::pow(now / before, options_.power));
}

std::vector<double> PolynomialLR::closed_form_lr() {
  const auto passed = static_cast<double>(std::min(options_.total_iters, last_epoch()));
  return scaled(base_lrs(), std::pow(1.0 - passed / static_cast<double>(options_.total_iters), options_.power));
}

void PolynomialLR::visit_state(StateFields& fields) {
  fields("total_iters", options_.total_iters);
  fields("power", options_.power);
  LRScheduler::visit_state(fields);
}

CosineAnnealingLR::CosineAnnealingLR(torch::optim::Optimizer& optimizer, CosineAnnealingLROptions options)
    : LRScheduler(optimizer), options_(options) {
  expect_option(options.T_max >= 1, "CosineAnnealingLR", "T_max", static_cast<double>(options.T_max), "at least 1");
  start();
}

std::vector<double> CosineAnnealingLR::get_lr() {
  if (is_initial()) return current_lrs();
  // After loading a state that counts no step, as old versions wrote.
  if (step_count() == 1 && last_epoch() > 0) return closed_form_lr();
  const auto period = static_cast<double>(options_.T_max);
  auto rates = current_lrs();
  if ((last_epoch() - 1 - options_.T_max) % (2 * options_.T_max) == 0) {
    // The step before was at the bottom, from where no ratio leads up.
    const double rise = 1 - std::cos(std::numbers::pi / period);
    for (size_t i = 0; i < std::min(rates.size(), base_lrs().size()); ++i) {
      rates[i] += (base_lrs()[i] - options_.eta_min) * rise / 2;
    }
    return rates;
  }
  const double now = 1 + std::cos(std::numbers::pi * static_cast<double>(last_epoch()) / period);
  const double before = 1 + std::cos(std::numbers::pi * static_cast<double>(last_epoch() - 1) / period);
  for (auto& rate : rates) rate = now / before * (rate - options_.eta_min) + options_.eta_min;
  return rates;
}

std::vector<double> CosineAnnealingLR::closed_form_lr() {
  const double angle = std::numbers::pi * static_cast<double>(last_epoch()) / static_cast<double>(options_.T_max);
  auto rates = base_lrs();
  for (auto& rate : rates) rate = cosine_between(options_.eta_min, rate, angle);
  return rates;
}

void CosineAnnealingLR::visit_state(StateFields& fields) {
  fields("T_max", options_.T_max);
  fields("eta_min", options_.eta_min);
  LRScheduler::visit_state(fields);
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(torch::optim::Optimizer& optimizer,
                                                         CosineAnnealingWarmRestartsOptions options)
    : LRScheduler(optimizer), options_(options), T_i_(options.T_0) {
  const auto* name = "CosineAnnealingWarmRestarts";
  expect_option(options.T_0 >= 1, name, "T_0", static_cast<double>(options.T_0), "at least 1");
  expect_option(options.T_mult >= 1, name, "T_mult", static_cast<double>(options.T_mult), "at least 1");
  start();
}

std::vector<double> CosineAnnealingWarmRestarts::get_lr() {
  const double angle = std::numbers::pi * T_cur_ / static_cast<double>(T_i_);
  auto rates = base_lrs();
  for (auto& rate : rates) rate = cosine_between(options_.eta_min, rate, angle);
  return rates;
}

void CosineAnnealingWarmRestarts::step() {
  if (last_epoch() < 0) return step(0);
  const double position = T_cur_ + 1;
  const auto length = static_cast<double>(T_i_);
  if (position < length) {
    move_to(position, T_i_, static_cast<double>(last_epoch() + 1));
  } else {
    move_to(std::fmod(position, length), T_i_ * options_.T_mult, static_cast<double>(last_epoch() + 1));
  }
}

void CosineAnnealingWarmRestarts::step(double epoch) {
  expect_option(epoch >= 0, "CosineAnnealingWarmRestarts", "epoch", epoch, "at least 0");
  const auto first = static_cast<double>(options_.T_0);
  const auto growth = static_cast<double>(options_.T_mult);
  if (epoch < first) return move_to(epoch, options_.T_0, epoch);
  if (options_.T_mult == 1) return move_to(std::fmod(epoch, first), T_i_, epoch);
  const double cycle = std::floor(std::log(epoch / first * (growth - 1) + 1) / std::log(growth));
  const double begin = first * (std::pow(growth, cycle) - 1) / (growth - 1);
  move_to(epoch - begin, options_.T_0 * static_cast<int64_t>(std::pow(growth, cycle)), epoch);
}

void CosineAnnealingWarmRestarts::move_to(double cycle_position, int64_t cycle_length, double epoch) {
  T_cur_ = cycle_position;
  T_i_ = cycle_length;
  // As in Python, its steps are not counted in _step_count.
  last_epoch_ = static_cast<int64_t>(std::floor(epoch));
  set_lrs(get_lr());
}

std::vector<double> CosineAnnealingWarmRestarts::begin_again(const std::vector<double>& initial) {
  T_cur_ = -1;
  T_i_ = options_.T_0;
  return LRScheduler::begin_again(initial);
}

void CosineAnnealingWarmRestarts::visit_state(StateFields& fields) {
  fields("T_0", options_.T_0);
  fields("T_i", T_i_);
  fields("T_mult", options_.T_mult);
  fields("eta_min", options_.eta_min);
  // Python's is a whole number unless someone stepped to a point in between.
  fields(
      "T_cur",
      [&]() -> Value {
        if (T_cur_ == std::floor(T_cur_)) return static_cast<int64_t>(T_cur_);
        return T_cur_;
      },
      [&](const Value& value) { return [this, position = value.get<double>()] { T_cur_ = position; }; });
  LRScheduler::visit_state(fields);
}

}  // namespace accelerate
