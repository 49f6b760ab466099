#pragma once

#include <accelerate/training/torch_schedulers.h>

#include <cstdint>

// The schedules of transformers: the rate grows from 0 to that of the optimizer in `warmup_steps` steps, then follows a curve
// until `total_steps`. Each says what it does after that. They save and load as LambdaLR does.
namespace accelerate {

/// No curve at all: get_constant_schedule.
class ConstantSchedule final : public LambdaLR {
 public:
  explicit ConstantSchedule(torch::optim::Optimizer& optimizer);
};

struct ConstantWithWarmupOptions {
  int64_t warmup_steps = 0;
};

/// Stays at the optimizer's rate: get_constant_schedule_with_warmup.
class ConstantWithWarmup final : public LambdaLR {
 public:
  ConstantWithWarmup(torch::optim::Optimizer& optimizer, ConstantWithWarmupOptions options);
};

struct LinearWithWarmupOptions {
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
};

/// A line down to 0, where it stays: get_linear_schedule_with_warmup.
class LinearWithWarmup final : public LambdaLR {
 public:
  LinearWithWarmup(torch::optim::Optimizer& optimizer, LinearWithWarmupOptions options);
};

struct CosineWithWarmupOptions {
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  /// Waves until total_steps; a half goes from the rate of the optimizer down to 0.
  double num_cycles = 0.5;
};

/// A cosine down to 0; after total_steps the wave goes on, up again: get_cosine_schedule_with_warmup.
class CosineWithWarmup final : public LambdaLR {
 public:
  CosineWithWarmup(torch::optim::Optimizer& optimizer, CosineWithWarmupOptions options);
};

struct CosineWithHardRestartsWithWarmupOptions {
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  /// How many times the cosine is run through.
  int64_t num_cycles = 1;
};

/// Cosines down to 0 with jumps back up, and 0 from total_steps on: get_cosine_with_hard_restarts_schedule_with_warmup.
class CosineWithHardRestartsWithWarmup final : public LambdaLR {
 public:
  CosineWithHardRestartsWithWarmup(torch::optim::Optimizer& optimizer, CosineWithHardRestartsWithWarmupOptions options);
};

struct PolynomialWithWarmupOptions {
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  /// The rate at the end, less than the optimizer's default.
  double lr_end = 1e-7;
  double power = 1.0;
};

/// A polynomial down to lr_end, where it stays: get_polynomial_decay_schedule_with_warmup. lr_end is that of a group with the
/// optimizer's default rate, and in proportion of others.
class PolynomialWithWarmup final : public LambdaLR {
 public:
  PolynomialWithWarmup(torch::optim::Optimizer& optimizer, PolynomialWithWarmupOptions options);
};

}  // namespace accelerate
