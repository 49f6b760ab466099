#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <vector>

// LibTorch's schedulers keep to themselves how far they are. A run that is continued needs it.
namespace accelerate {

/// How many steps were taken.
unsigned& step_count_of(torch::optim::LRScheduler& scheduler);
/// The present rates of its optimizer.
std::vector<double> current_lrs_of(const torch::optim::LRScheduler& scheduler);

/// What changes in a ReduceLROnPlateauScheduler from step to step.
struct PlateauProgress {
  float& best;
  int& cooldown_counter;
  int& num_bad_epochs;
  int& last_epoch;
};
PlateauProgress progress_of(torch::optim::ReduceLROnPlateauScheduler& scheduler);

/// Whether the scheduler sets the rates of `optimizer`. Nothing is changed when it returns.
bool sets_rates_of(const torch::optim::LRScheduler& scheduler, torch::optim::Optimizer& optimizer);
bool sets_rates_of(torch::optim::ReduceLROnPlateauScheduler& scheduler, torch::optim::Optimizer& optimizer);

}  // namespace accelerate
