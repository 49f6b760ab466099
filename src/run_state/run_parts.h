#pragma once

#include <accelerate/data/any_data_loader.h>
#include <accelerate/distributed/process_state.h>
#include <accelerate/run_state/registered_object.h>
#include <accelerate/training/accelerated_optimizer.h>
#include <accelerate/training/accelerated_scheduler.h>
#include <accelerate/training/grad_scaler.h>
#include <accelerate/training/gradient_state.h>

#include <memory>
#include <vector>

#include "training/gradient_buffers.h"

namespace accelerate::detail {

class ModelCore;

/// What the state of a run consists of.
struct RunParts {
  ProcessState state;
  std::vector<std::shared_ptr<ModelCore>> models;
  std::vector<AcceleratedOptimizer> optimizers;
  std::vector<AcceleratedScheduler> schedulers;
  std::vector<AnyDataLoader> loaders;
  std::shared_ptr<GradScaler> scaler;
  std::shared_ptr<GradientState> gradients;
  std::vector<RegisteredObject> registered;
  /// Null unless gradients are accumulated in a separate dtype.
  std::shared_ptr<GradientBuffers> buffers = nullptr;
  /// With those that load hooks took out of `models`, which optimizers still step. Empty when none were.
  std::vector<std::shared_ptr<ModelCore>> all_models = {};

  const std::vector<std::shared_ptr<ModelCore>>& stepped_models() const { return all_models.empty() ? models : all_models; }
};

}  // namespace accelerate::detail
