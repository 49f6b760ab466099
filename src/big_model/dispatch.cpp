#include <ATen/core/grad_mode.h>
#include <accelerate/big_model/dispatch.h>
#include <accelerate/big_model/load_checkpoint.h>
#include <accelerate/core/error.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <set>

#include "big_model/dispatcher.h"
#include "core/hub_cache.h"
#include "residency/empty_scope.h"

namespace accelerate::detail {
namespace {

/// What there is an engine for.
void check_devices(const DeviceMap& map, const std::optional<c10::Device>& main_device) {
  std::set<Place> accelerators;
  bool offloads = false;
  if (main_device && !main_device->is_cpu()) accelerators.insert(*main_device);
  for (const auto& [name, place] : map) {
    if (place.is_disk() || place.is_cpu()) {
      offloads = true;
    } else {
      accelerators.insert(place);
    }
  }
  if (accelerators.size() > 1 || (offloads && !accelerators.empty())) {
    throw UsageError(
        "Weights cannot be offloaded from an accelerator yet, nor spread over several: give a map that has the CPU and the disk "
        "alone, or one accelerator.");
  }
}

}  // namespace

const DeviceMap& device_map_of(const DispatchCore& core) { return core.map; }

OffloadCounts offload_counts_of(const DispatchCore& core) {
  if (!core.pager) return {};
  const auto counts = core.pager->counts();
  return {.loads = counts.loads, .unforeseen = counts.demanded, .bytes_read = counts.bytes, .peak_bytes = counts.peak};
}

c10::Device main_device_of(const DispatchCore& core) { return core.main_device; }

void drop_weights(const DispatchCore& core) {
  if (core.pager) core.pager->drop_all();
}

std::shared_ptr<DispatchCore> dispatch(std::shared_ptr<torch::nn::Module> module, const DeviceMap& map,
                                       const DispatchOptions& options) {
  const residency::OutsideEmptyScopes outside;
  const at::NoGradGuard without_graph;
  check_device_map(*module, map);
  check_devices(map, options.main_device);
  Dispatcher dispatcher(*module, map, options);
  return dispatcher.run(std::nullopt);
}

std::shared_ptr<DispatchCore> load_and_dispatch(std::shared_ptr<torch::nn::Module> module, const std::string& checkpoint,
                                                const LoadCheckpointOptions& options) {
  const residency::OutsideEmptyScopes outside;
  const at::NoGradGuard without_graph;
  const DeviceMap map = !options.device_map.has_value()
                            ? DeviceMap{}
                            : resolve_device_map(*module, options.device_map,
                                                 {.max_memory = options.max_memory,
                                                  .no_split_module_classes = options.no_split_module_classes,
                                                  .dtype = options.dtype,
                                                  .offload_buffers = options.offload_buffers});
  check_devices(map, options.main_device);
  const DispatchOptions dispatch_options{.main_device = options.main_device,
                                         .offload_dir = options.offload_folder,
                                         .offload_buffers = options.offload_buffers,
                                         .preload_module_classes = options.preload_module_classes,
                                         .offload_budget = options.offload_budget,
                                         .mmap = options.mmap};
  Dispatcher dispatcher(*module, map, dispatch_options);
  dispatcher.take_checkpoint({.path = find_model(checkpoint).string(),
                              .strict = options.strict,
                              .dtype = options.dtype,
                              .new_name = options.key_mapping});
  std::optional<uint64_t> limit;
  if (const ByteSize* given = options.max_memory.find(Place(dispatcher.main_device())))
    limit = static_cast<uint64_t>(given->bytes());
  return dispatcher.run(limit);
}

}  // namespace accelerate::detail
