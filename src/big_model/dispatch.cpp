#include <ATen/core/grad_mode.h>
#include <accelerate/big_model/dispatch.h>
#include <accelerate/big_model/load_checkpoint.h>
#include <accelerate/core/error.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "big_model/dispatcher.h"
#include "core/hub_cache.h"
#include "residency/device_alignment.h"
#include "residency/empty_scope.h"
#include "sharding/load_shards.h"

namespace accelerate::detail {
namespace {

/// A missing device is reported before anything else happens.
void check_device(const c10::Device& device) {
  if (device.is_cpu() || device.is_meta()) return;
  const auto* guard = c10::impl::hasDeviceGuardImpl(device.type()) ? c10::impl::getDeviceGuardImpl(device.type()) : nullptr;
  const int count = guard ? guard->deviceCount() : 0;
  if (std::max<int>(device.index(), 0) < count) return;
  throw UsageError(fmt::format("The device map needs {}, but there {} {} here.", device.str(),
                               count == 1 ? "is one" : fmt::format("are {}", count),
                               c10::DeviceTypeName(device.type(), true) + (count == 1 ? " device" : " devices")));
}

void check_devices(const DeviceMap& map, c10::Device main_device) {
  check_device(main_device);
  for (const auto& [name, place] : map) {
    if (!place.is_disk()) check_device(place.device());
  }
}

/// The dtypes that weights have when those of some modules stay in float32.
SpecialDtypes dtypes_in_float32(const torch::nn::Module& module, const std::vector<std::string>& modules) {
  SpecialDtypes dtypes;
  for (const auto& group : weight_groups(module, {})) {
    for (const auto& weight : group.weights) {
      if (at::isFloatingType(weight.tensor.scalar_type()) && is_kept_in_float32(weight.name, modules))
        dtypes[weight.name] = at::kFloat;
    }
  }
  return dtypes;
}

}  // namespace

const DeviceMap& device_map_of(const DispatchCore& core) { return core.map; }

OffloadCounts offload_counts_of(const DispatchCore& core) {
  if (!core.pager) return {};
  const auto counts = core.pager->counts();
  return {.loads = counts.loads, .prefetch_misses = counts.demanded, .bytes_read = counts.bytes, .peak_bytes = counts.peak};
}

c10::Device input_device_of(const DispatchCore& core) { return core.input_device; }

const std::vector<std::string>& skip_keys_of(const DispatchCore& core) { return core.skip_keys; }

std::optional<c10::Device> first_device_of(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  if (parameters.empty() || parameters[0].is_meta()) return std::nullopt;
  return parameters[0].device();
}

CallScope::CallScope(const DispatchCore& core) {
  if (core.crosses_devices) scope_ = std::make_unique<AlignmentScope>();
}

CallScope::~CallScope() = default;

void drop_weights(const DispatchCore& core) {
  if (core.pager) core.pager->drop_all();
}

std::shared_ptr<DispatchCore> dispatch(std::shared_ptr<torch::nn::Module> module, const DeviceMap& map,
                                       const DispatchOptions& options) {
  const OutsideEmptyScopes outside;
  const at::NoGradGuard without_graph;
  check_device_map(*module, map);
  Dispatcher dispatcher(*module, map, options);
  check_devices(map, dispatcher.main_device());
  dispatcher.take_offloaded();
  return dispatcher.run(std::nullopt);
}

void expect_dispatched(const std::shared_ptr<DispatchCore>& core) {
  if (!core)
    throw UsageError(
        "load_checkpoint_and_dispatch was given a sharded model. Its weights were loaded: call the prepared model, and "
        "load with load_checkpoint_in_model.");
}

std::shared_ptr<DispatchCore> load_and_dispatch(std::shared_ptr<torch::nn::Module> module, const std::string& checkpoint,
                                                const LoadCheckpointOptions& options, std::source_location where) {
  if (is_sharded(*module)) {
    if (options.device_map.has_value() || options.dtype)
      throw UsageError("load_checkpoint_in_model was given a device_map or a dtype for " + module->name() +
                       ", which is sharded over the ranks: its shards stay where they are, in their dtype.");
    load_shards(*module, find_model(checkpoint).string(),
                {.strict = options.strict, .new_name = options.key_mapping, .where = where});
    return nullptr;
  }
  const OutsideEmptyScopes outside;
  const at::NoGradGuard without_graph;
  const SpecialDtypes special_dtypes = options.dtype ? dtypes_in_float32(*module, options.keep_in_fp32_modules) : SpecialDtypes{};
  const DeviceMap map = !options.device_map.has_value()
                            ? DeviceMap{}
                            : resolve_device_map(*module, options.device_map,
                                                 {.max_memory = options.max_memory,
                                                  .no_split_module_classes = options.no_split_module_classes,
                                                  .dtype = options.dtype,
                                                  .special_dtypes = special_dtypes,
                                                  .offload_buffers = options.offload_buffers});
  const DispatchOptions dispatch_options{.main_device = options.main_device,
                                         .offload_dir = options.offload_folder,
                                         .offload_buffers = options.offload_buffers,
                                         .preload_module_classes = options.preload_module_classes,
                                         .offload_budget = options.offload_budget,
                                         .mmap = options.mmap,
                                         .skip_keys = options.skip_keys};
  Dispatcher dispatcher(*module, map, dispatch_options);
  check_devices(map, dispatcher.main_device());
  dispatcher.take_checkpoint({.path = find_model(checkpoint).string(),
                              .strict = options.strict,
                              .dtype = options.dtype,
                              .in_float32 = options.keep_in_fp32_modules,
                              .new_name = options.key_mapping,
                              .together = options.broadcast_from_rank0,
                              .where = where});
  std::optional<uint64_t> limit;
  if (const ByteSize* given = options.max_memory.find(Place(dispatcher.main_device())))
    limit = static_cast<uint64_t>(given->bytes());
  return dispatcher.run(limit);
}

}  // namespace accelerate::detail
