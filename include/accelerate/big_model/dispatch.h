#pragma once

#include <accelerate/big_model/call_devices.h>
#include <accelerate/big_model/device_map.h>
#include <accelerate/big_model/max_memory.h>

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accelerate {

namespace detail {
class AlignmentScope;
}

/// How offloaded weights are paged in and out.
struct DispatchOptions {
  /// The device that computes with offloaded weights: those on disk and, when it is an accelerator, those on the CPU. By default
  /// the first accelerator of the map, else the CPU.
  std::optional<c10::Device> main_device = {};
  /// Where weights on disk are written to, or have been: a folder with an index that has all of them is used as it is.
  std::string offload_dir = {};
  /// Buffers of offloaded modules are offloaded too; otherwise they stay on the main device.
  bool offload_buffers = false;
  /// Modules of these classes page in their weights all at once, those of their children included.
  std::vector<std::string> preload_module_classes = {};
  /// The memory budget of offloaded weights on the main device. By default what `max_memory` leaves there, else three
  /// times the largest layer.
  std::optional<ByteSize> offload_budget = {};
  /// On a CPU: weights that a file has as they are needed are pages of it, mapped into memory: loaded at once, and fast while the
  /// system has the file cached. But such pages count towards no limit, a disk that fails ends the process, and a file that
  /// somebody overwrites in place changes the weights.
  bool mmap = false;
  /// Tensors under these keys of dictionaries among the arguments and results of a call stay where they are.
  std::vector<std::string> skip_keys = {};
};

/// What was paged in to a main device from disk or from host memory.
struct OffloadCounts {
  /// Layers paged in, and how many of them were prefetch misses.
  int64_t loads = 0, prefetch_misses = 0;
  uint64_t bytes_read = 0;
  /// The most memory that offloaded weights took at once.
  uint64_t peak_bytes = 0;
};

namespace detail {

class DispatchCore;

/// A module type that a dispatched model can be made of.
template <class M>
concept DispatchableModule = std::derived_from<M, torch::nn::Module>;

/// What a dispatched model does, independent of its type.
const DeviceMap& device_map_of(const DispatchCore& core);
OffloadCounts offload_counts_of(const DispatchCore& core);
/// The device that arguments are moved to, and what is left alone.
c10::Device input_device_of(const DispatchCore& core);
const std::vector<std::string>& skip_keys_of(const DispatchCore& core);
/// The device of a model's first parameter, for models that are offloaded as a whole; nothing when it has no bytes.
std::optional<c10::Device> first_device_of(const torch::nn::Module& module);
/// Evicts all offloaded weights that are in memory.
void drop_weights(const DispatchCore& core);
std::shared_ptr<DispatchCore> dispatch(std::shared_ptr<torch::nn::Module> module, const DeviceMap& map,
                                       const DispatchOptions& options);

/// While it lives, a model can be called whose weights are on several devices: its operators move their tensors to one.
class [[nodiscard]] CallScope {
 public:
  explicit CallScope(const DispatchCore& core);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  std::unique_ptr<detail::AlignmentScope> scope_;
};

/// A module out of a holder (what TORCH_MODULE makes) or a shared pointer.
template <class H>
auto module_of(const H& holder) {
  if constexpr (requires { holder.ptr(); }) {
    return holder.ptr();
  } else {
    return holder;
  }
}

}  // namespace detail

/// A model whose weights lie where its device map says. Calls go to the module's `forward`, with arguments on the main device and
/// results where the first tensor of the arguments was. An argument that `forward` takes as a reference to non-const, such as a
/// cache that it fills, is the caller's own. The module stays usable by itself, also when this is gone; unless its weights are
/// on several devices.
template <detail::DispatchableModule M>
class DispatchedModel {
 public:
  DispatchedModel(std::shared_ptr<M> module, std::shared_ptr<detail::DispatchCore> core)
      : module_(std::move(module)), core_(std::move(core)) {}

  template <class... Arguments>
  auto operator()(Arguments&&... arguments) const {
    const detail::CallScope scope(*core_);
    return detail::call_on_device(*module_, detail::input_device_of(*core_), detail::skip_keys_of(*core_), /*back=*/true,
                                  std::forward<Arguments>(arguments)...);
  }

  /// Where each part of it lives.
  const DeviceMap& device_map() const { return detail::device_map_of(*core_); }
  OffloadCounts offload_counts() const { return detail::offload_counts_of(*core_); }
  /// Evicts offloaded weights from memory. They are paged in again when they are used.
  void release_memory() const { detail::drop_weights(*core_); }

  M* operator->() const { return module_.get(); }
  M& operator*() const { return *module_; }
  const std::shared_ptr<M>& module() const { return module_; }

 private:
  std::shared_ptr<M> module_;
  std::shared_ptr<detail::DispatchCore> core_;
};

/// Puts the weights of a model where `device_map` says. Those on disk are written to `offload_dir`, unless its index has all of
/// them in the right shape and dtype: then they are what the folder has, and the model's own are dropped. UsageError when the map
/// leaves a weight without a place or names what the model lacks, when a weight goes to disk and there is no folder, one has no
/// bytes, or the main device is too small for a layer; then nothing was changed.
template <class H>
auto dispatch_model(const H& model, const DeviceMap& device_map, const DispatchOptions& options = {}) {
  auto module = detail::module_of(model);
  auto core = detail::dispatch(module, device_map, options);
  return DispatchedModel(std::move(module), std::move(core));
}

namespace detail {
/// All weights on one place: they are paged in to `main_device`, by default that of the first parameter, when they are used.
template <class H>
auto offload_all(const H& model, const Place& place, DispatchOptions options) {
  if (!options.main_device) options.main_device = first_device_of(*module_of(model));
  return dispatch_model(model, DeviceMap{{"", place}}, options);
}
}  // namespace detail

/// All weights on the CPU, to be computed with on `main_device`.
template <class H>
auto cpu_offload(const H& model, const DispatchOptions& options = {}) {
  return detail::offload_all(model, Place(c10::kCPU), options);
}

/// All weights on disk, to be computed with on `main_device`.
template <class H>
auto disk_offload(const H& model, const std::string& offload_dir, DispatchOptions options = {}) {
  options.offload_dir = offload_dir;
  return detail::offload_all(model, Place::disk(), options);
}

}  // namespace accelerate
