#pragma once

#include <accelerate/data/data_loader.h>
#include <accelerate/parallel/model.h>
#include <accelerate/run_state/registered_object.h>
#include <accelerate/training/accelerated_optimizer.h>
#include <accelerate/training/accelerated_scheduler.h>
#include <accelerate/training/grad_scaler.h>
#include <accelerate/training/gradient_state.h>

#include <memory>
#include <vector>

#include "checkpoint/random_states.h"
#include "training/gradient_buffers.h"

namespace accelerate::detail {

/// Everything of a run that a checkpoint holds.
struct RunParts {
  ProcessState state;
  std::vector<std::shared_ptr<ModelCore>> models;
  std::vector<AcceleratedOptimizer> optimizers;
  std::vector<AcceleratedScheduler> schedulers;
  std::vector<AnyDataLoader> loaders;
  std::shared_ptr<GradScaler> scaler;
  std::shared_ptr<GradientState> gradients;
  std::vector<RegisteredObject> registered;
  /// Null unless gradients are added up in a dtype of their own.
  std::shared_ptr<GradientBuffers> buffers = nullptr;
};

/// The names of files, which are Python's.
std::string numbered_name(const std::string& stem, size_t number, const std::string& extension);
std::string registered_name(size_t number);
inline constexpr char kRandomStates[] = "random_states_", kScaler[] = "scaler.pt";
std::string random_states_name(int process);
/// A parameter among those of all models: "0.fc.weight".
std::string parameter_key(size_t model, const std::string& name);
/// One that Python passes over.
inline constexpr char kOwnState[] = "accelerate_state.bin";

}  // namespace accelerate::detail
