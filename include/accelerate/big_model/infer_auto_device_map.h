#pragma once

#include <accelerate/big_model/device_map.h>
#include <accelerate/big_model/max_memory.h>
#include <accelerate/big_model/module_sizes.h>

#include <optional>
#include <string>
#include <vector>

namespace accelerate {

struct InferDeviceMapOptions {
  MaxMemory max_memory = {};
  /// Classes of modules that are never spread over several places, such as blocks with a residual connection. They match in
  /// full or by their last component, with or without Impl.
  std::vector<std::string> no_split_module_classes = {};
  /// What floating-point weights become when they are loaded.
  std::optional<c10::ScalarType> dtype = std::nullopt;
  SpecialDtypes special_dtypes = {};
  /// Say each decision as it is made.
  bool verbose = false;
  /// Give the map with as few entries as possible.
  bool clean_result = true;
  /// Buffers of layers on the CPU or the disk are offloaded too; otherwise a warning says so when they fit on no accelerator.
  bool offload_buffers = false;
  /// When the next module is too large for a place that is still empty, look for a later one that fits.
  bool fallback_allocation = false;
};

/// Fills places in order: accelerators, then the CPU, then the disk, which has no limit. The first accelerator and the CPU keep
/// room for the largest layer that may have to be paged in from a later place. Modules that do not fit are split into their
/// parameters and children; tied parameters stay together. Only shapes and dtypes matter, so the model may be on the meta device.
DeviceMap infer_auto_device_map(const torch::nn::Module& model, const InferDeviceMapOptions& options = {});

/// The map that a choice stands for: by its rule ("auto" and "balanced" spread evenly, "balanced_low_0" leaves accelerator 0 as
/// free as possible, "sequential" fills one place after the other), or the one given, checked. Every parameter and buffer has a
/// place. UsageError when nothing was chosen.
DeviceMap resolve_device_map(const torch::nn::Module& model, const DeviceMapChoice& choice,
                             const InferDeviceMapOptions& options = {});

}  // namespace accelerate
