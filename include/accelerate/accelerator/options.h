#pragma once

#include <accelerate/data/data_loader_configuration.h>
#include <accelerate/distributed/process_state.h>
#include <accelerate/distributed/random.h>
#include <accelerate/parallel/ddp_options.h>
#include <accelerate/run_state/project_configuration.h>
#include <accelerate/sharding/fsdp_options.h>
#include <accelerate/training/grad_scaler.h>
#include <accelerate/training/gradient_state.h>
#include <accelerate/training/precision.h>

#include <chrono>
#include <optional>

namespace accelerate {

/// Options of an Accelerator. All have defaults; name what you set: `Accelerator({.cpu = true})`.
struct AcceleratorOptions {
  /// Move prepared objects to the device.
  bool device_placement = true;
  /// Use the CPU although there is a GPU. ACCELERATE_USE_CPU says the same.
  bool cpu = false;
  /// Not given: ACCELERATE_MIXED_PRECISION, else no.
  std::optional<Precision> mixed_precision = {};
  /// On a TPU, bf16 also for float64. UsageError: there are no XLA devices yet.
  bool downcast_bf16 = false;
  /// ACCELERATE_GRADIENT_ACCUMULATION_STEPS wins over it, as in Python.
  int gradient_accumulation_steps = 1;
  /// When an accumulation ends, and when its gradients are all-reduced.
  GradientAccumulationOptions gradient_accumulation = {};
  /// A prepared scheduler steps only when its optimizer has, once for each process (see AcceleratedScheduler). Off: with every
  /// call.
  bool step_scheduler_with_optimizer = true;
  /// How loaders are sharded.
  DataLoaderConfiguration dataloader = {};
  /// Where the run keeps checkpoints and logs.
  ProjectConfiguration project = {};
  /// Which random states are synchronized when a pass over a loader begins.
  std::vector<RngType> rng_types = {RngType::generator};
  /// How gradients are all-reduced.
  DdpOptions ddp = {};
  /// Weights, gradients and optimizer state are sharded over the processes. Not given: as ACCELERATE_USE_FSDP and the FSDP_*
  /// variables say, which `accelerate launch` sets.
  std::optional<FsdpOptions> fsdp = {};
  /// How losses are scaled under fp16.
  GradScalerOptions grad_scaler = {};
  /// Prepared optimizers clip gradients to this norm before each step, as DeepSpeed does: for loops that do not clip themselves.
  std::optional<double> gradient_clipping = {};
  /// A group that the application made; it is used and never destroyed.
  ProcessGroupHandle process_group = {};
  /// How long to wait for a peer.
  std::optional<std::chrono::milliseconds> timeout = {};
};

}  // namespace accelerate
