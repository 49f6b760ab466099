#pragma once

#include <accelerate/distributed/process_state.h>
#include <accelerate/training/precision.h>

#include <chrono>
#include <optional>

namespace accelerate {

/// What an Accelerator can be told. Everything has a default; name what you set: `Accelerator({.cpu = true})`.
struct AcceleratorOptions {
  /// Move prepared objects to the device.
  bool device_placement = true;
  /// Use the CPU although there is a GPU. ACCELERATE_USE_CPU says the same.
  bool cpu = false;
  /// Not given: ACCELERATE_MIXED_PRECISION, else no.
  std::optional<Precision> mixed_precision = {};
  /// ACCELERATE_GRADIENT_ACCUMULATION_STEPS wins over it, as in Python.
  int gradient_accumulation_steps = 1;
  /// A group that the application made; it is used and never destroyed.
  ProcessGroupHandle process_group = {};
  /// How long to wait for a peer.
  std::optional<std::chrono::milliseconds> timeout = {};
};

}  // namespace accelerate
