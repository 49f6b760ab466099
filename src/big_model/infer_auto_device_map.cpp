#include <accelerate/big_model/infer_auto_device_map.h>
#include <accelerate/big_model/tied_parameters.h>
#include <accelerate/checkpoint/module_state.h>
#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>

#include <algorithm>

#include "big_model/device_packer.h"
#include "big_model/places_in_order.h"

namespace accelerate {

using namespace detail;
namespace {

/// Buffers of offloaded modules stay on an accelerator unless they are offloaded too.
void warn_of_homeless_buffers(const Packing& packing, const MaxMemory& limits) {
  double homeless = 0, largest_room = 0;
  bool has_accelerator = false;
  for (const auto& [place, bytes] : packing.buffers) {
    if (place.is_cpu() || place.is_disk()) homeless += bytes;
  }
  for (const auto& [place, limit] : limits) {
    if (place.is_cpu() || place.is_disk()) continue;
    const auto used = packing.used.find(place);
    largest_room = std::max(largest_room, limit.bytes() - (used == packing.used.end() ? 0 : used->second));
    has_accelerator = true;
  }
  if (!has_accelerator || homeless == 0 || homeless <= largest_room) return;
  get_logger("accelerate")
      .warning(
          "The buffers of offloaded layers need {} bytes, more than any accelerator has left. offload_buffers = true offloads "
          "them with the layers.",
          homeless);
}

void tell_of_empty_places(const Packing& packing) {
  std::string places;
  for (const auto& [place, bytes] : packing.too_small) {
    places += accelerate::format("{}{} (at least {} bytes)", places.empty() ? "" : ", ", place, bytes);
  }
  if (!places.empty())
    get_logger("accelerate").info("No part of the model fits on: {}. Raise their limits in max_memory to use them.", places);
}

/// A module that is spread over places has no entry, so its own buffers have none either: they go where the first of it went.
void place_forgotten_buffers(const torch::nn::Module& model, DeviceMap& map) {
  const TensorDict tensors = state_dict(model);
  for (const auto& forgotten : tensors) {
    if (map.place_of(forgotten.first)) continue;
    const size_t dot = forgotten.first.rfind('.');
    const std::string module = dot == std::string::npos ? "" : forgotten.first.substr(0, dot + 1);
    const auto beside = std::find_if(tensors.begin(), tensors.end(), [&](const auto& one) {
      return one.first.starts_with(module) && map.place_of(one.first).has_value();
    });
    if (beside != tensors.end()) map[forgotten.first] = *map.place_of(beside->first);
  }
}

}  // namespace

DeviceMap infer_auto_device_map(const torch::nn::Module& model, const InferDeviceMapOptions& options) {
  const MaxMemory limits = options.max_memory.empty() ? get_max_memory() : in_filling_order(options.max_memory);
  ModuleSizeOptions sizing{.dtype = options.dtype, .special_dtypes = options.special_dtypes};
  const ModuleSizes sizes = compute_module_sizes(model, sizing);
  sizing.buffers_only = true;
  const ModulePart parts = module_parts(model, sizes, compute_module_sizes(model, sizing), options.no_split_module_classes);
  const PackingOptions packing_options{.verbose = options.verbose, .fallback_allocation = options.fallback_allocation};
  Packing packing = DevicePacker(parts, limits, find_tied_parameters(model), packing_options).pack();
  if (!options.offload_buffers) warn_of_homeless_buffers(packing, limits);
  tell_of_empty_places(packing);
  return options.clean_result ? clean_device_map(packing.map) : packing.map;
}

DeviceMap resolve_device_map(const torch::nn::Module& model, const DeviceMapChoice& choice,
                             const InferDeviceMapOptions& options) {
  if (const DeviceMap* map = choice.map()) {
    check_device_map(model, *map);
    return *map;
  }
  if (choice.rule() == nullptr) throw UsageError("No device_map was given. Give one, such as \"auto\".");
  InferDeviceMapOptions chosen = options;
  if (!options.max_memory.empty()) chosen.max_memory = get_max_memory(options.max_memory);  // warns of what this host lacks
  if (*choice.rule() != "sequential") {
    chosen.max_memory = get_balanced_memory(model, {.max_memory = chosen.max_memory,
                                                    .no_split_module_classes = options.no_split_module_classes,
                                                    .dtype = options.dtype,
                                                    .special_dtypes = options.special_dtypes,
                                                    .low_zero = *choice.rule() == "balanced_low_0"});
  }
  DeviceMap map = infer_auto_device_map(model, chosen);
  place_forgotten_buffers(model, map);
  return map;
}

}  // namespace accelerate
