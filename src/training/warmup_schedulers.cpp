#include <accelerate/core/error.h>
#include <accelerate/training/warmup_schedulers.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace accelerate {

namespace {

void check_schedule_steps(const char* schedule, const char* name, int64_t steps, int64_t least) {
  if (steps < least) {
    throw UsageError(std::string(schedule) + ": " + name + "=" + std::to_string(steps) + ": expected at least " +
                     std::to_string(least) + ".");
  }
}

/// `curve` after a line from 0 to 1. Counts as transformers does: at step warmup_steps the curve begins.
LambdaLR::Factor after_warmup(const char* schedule, int64_t warmup_steps, LambdaLR::Factor curve) {
  check_schedule_steps(schedule, "warmup_steps", warmup_steps, 0);
  return [=](int64_t step) {
    return step < warmup_steps ? static_cast<double>(step) / static_cast<double>(warmup_steps) : curve(step);
  };
}

/// How much of the time after the warm-up has passed; more than 1 after total_steps.
double progress_at(int64_t step, int64_t warmup_steps, int64_t total_steps) {
  return static_cast<double>(step - warmup_steps) / static_cast<double>(std::max<int64_t>(1, total_steps - warmup_steps));
}

LambdaLR::Factor linear_factor(LinearWithWarmupOptions o) {
  check_schedule_steps("LinearWithWarmup", "total_steps", o.total_steps, 1);
  return after_warmup("LinearWithWarmup", o.warmup_steps, [o](int64_t step) {
    const auto length = std::max<int64_t>(1, o.total_steps - o.warmup_steps);
    return std::max(0.0, static_cast<double>(o.total_steps - step) / static_cast<double>(length));
  });
}

LambdaLR::Factor cosine_factor(CosineWithWarmupOptions o) {
  check_schedule_steps("CosineWithWarmup", "total_steps", o.total_steps, 1);
  return after_warmup("CosineWithWarmup", o.warmup_steps, [o](int64_t step) {
    const double angle = std::numbers::pi * o.num_cycles * 2.0 * progress_at(step, o.warmup_steps, o.total_steps);
    return std::max(0.0, 0.5 * (1.0 + std::cos(angle)));
  });
}

LambdaLR::Factor hard_restarts_factor(CosineWithHardRestartsWithWarmupOptions o) {
  check_schedule_steps("CosineWithHardRestartsWithWarmup", "total_steps", o.total_steps, 1);
  return after_warmup("CosineWithHardRestartsWithWarmup", o.warmup_steps, [o](int64_t step) {
    const double progress = progress_at(step, o.warmup_steps, o.total_steps);
    if (progress >= 1.0) return 0.0;
    const double within_cycle = std::fmod(static_cast<double>(o.num_cycles) * progress, 1.0);
    return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * within_cycle)));
  });
}

LambdaLR::Factor polynomial_factor(double initial, PolynomialWithWarmupOptions o) {
  if (!(initial > o.lr_end)) {
    throw UsageError("PolynomialWithWarmup: lr_end=" + std::to_string(o.lr_end) +
                     ": expected less than the optimizer's default " + "learning rate, " + std::to_string(initial) + ".");
  }
  if (o.total_steps <= o.warmup_steps) {
    throw UsageError("PolynomialWithWarmup: total_steps=" + std::to_string(o.total_steps) +
                     ": expected more than warmup_steps, " + std::to_string(o.warmup_steps) + ".");
  }
  return after_warmup("PolynomialWithWarmup", o.warmup_steps, [initial, o](int64_t step) {
    if (step > o.total_steps) return o.lr_end / initial;
    const double remaining =
        1.0 - static_cast<double>(step - o.warmup_steps) / static_cast<double>(o.total_steps - o.warmup_steps);
    return ((initial - o.lr_end) * std::pow(remaining, o.power) + o.lr_end) / initial;
  });
}

}  // namespace

ConstantSchedule::ConstantSchedule(torch::optim::Optimizer& optimizer) : LambdaLR(optimizer, [](int64_t) { return 1.0; }) {}

ConstantWithWarmup::ConstantWithWarmup(torch::optim::Optimizer& optimizer, ConstantWithWarmupOptions options)
    : LambdaLR(optimizer, after_warmup("ConstantWithWarmup", options.warmup_steps, [](int64_t) { return 1.0; })) {}

LinearWithWarmup::LinearWithWarmup(torch::optim::Optimizer& optimizer, LinearWithWarmupOptions options)
    : LambdaLR(optimizer, linear_factor(options)) {}

CosineWithWarmup::CosineWithWarmup(torch::optim::Optimizer& optimizer, CosineWithWarmupOptions options)
    : LambdaLR(optimizer, cosine_factor(options)) {}

CosineWithHardRestartsWithWarmup::CosineWithHardRestartsWithWarmup(torch::optim::Optimizer& optimizer,
                                                                   CosineWithHardRestartsWithWarmupOptions options)
    : LambdaLR(optimizer, hard_restarts_factor(options)) {}

PolynomialWithWarmup::PolynomialWithWarmup(torch::optim::Optimizer& optimizer, PolynomialWithWarmupOptions options)
    : LambdaLR(optimizer, polynomial_factor(optimizer.defaults().get_lr(), options)) {}

}  // namespace accelerate
