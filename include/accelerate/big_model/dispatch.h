#pragma once

#include <accelerate/big_model/device_map.h>
#include <accelerate/big_model/max_memory.h>
#include <accelerate/distributed/nested.h>

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

/// How weights that are not where they are computed with come and go.
struct DispatchOptions {
  /// Where offloaded weights are computed with. By default the first accelerator of the map, else the CPU.
  std::optional<c10::Device> main_device = {};
  /// Where weights on disk are written to, unless a file has them already as they are needed.
  std::string offload_dir = {};
  /// Buffers of modules on disk are offloaded too; otherwise they stay on the main device.
  bool offload_buffers = false;
  /// Modules of these classes bring their weights all at once, those of their children included.
  std::vector<std::string> preload_module_classes = {};
  /// The memory on the main device that offloaded weights take turns in. By default what `max_memory` leaves there, else three
  /// times the largest layer.
  std::optional<ByteSize> offload_budget = {};
  /// On a CPU: weights that a file has as they are needed are pages of it, mapped into memory: loaded at once, and fast while the
  /// system has the file cached. But such pages count towards no limit, a disk that fails ends the process, and a file that
  /// somebody overwrites in place changes the weights.
  bool mmap = false;
};

/// What moved between a disk and a main device.
struct OffloadCounts {
  /// Layers brought, and those of them that were not foreseen.
  int64_t loads = 0, unforeseen = 0;
  uint64_t bytes_read = 0;
  /// The most memory that offloaded weights took at once.
  uint64_t peak_bytes = 0;
};

namespace detail {

class DispatchCore;

/// A module type that a dispatched model can be made of.
template <class M>
concept DispatchableModule = std::derived_from<M, torch::nn::Module>;

/// What a dispatched model does whatever its type is.
const DeviceMap& device_map_of(const DispatchCore& core);
OffloadCounts offload_counts_of(const DispatchCore& core);
c10::Device main_device_of(const DispatchCore& core);
/// Drops all offloaded weights that are in memory.
void drop_weights(const DispatchCore& core);
std::shared_ptr<DispatchCore> dispatch(std::shared_ptr<torch::nn::Module> module, const DeviceMap& map,
                                       const DispatchOptions& options);

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

/// A model whose weights lie where its device map says. Calls go to the module's `forward`, with inputs that are on the main
/// device. The module stays usable by itself, also when this is gone.
template <detail::DispatchableModule M>
class DispatchedModel {
 public:
  DispatchedModel(std::shared_ptr<M> module, std::shared_ptr<detail::DispatchCore> core)
      : module_(std::move(module)), core_(std::move(core)) {}

  template <class... Arguments>
  auto operator()(Arguments&&... arguments) const {
    return module_->forward(std::forward<Arguments>(arguments)...);
  }

  /// Where each part of it lives.
  const DeviceMap& device_map() const { return detail::device_map_of(*core_); }
  OffloadCounts offload_counts() const { return detail::offload_counts_of(*core_); }
  /// Gives back the memory that offloaded weights take at the moment. They come again when they are used.
  void release_memory() const { detail::drop_weights(*core_); }

  M* operator->() const { return module_.get(); }
  M& operator*() const { return *module_; }
  const std::shared_ptr<M>& module() const { return module_; }

 private:
  std::shared_ptr<M> module_;
  std::shared_ptr<detail::DispatchCore> core_;
};

/// Puts the weights of a model where `device_map` says. Those on disk are written to `offload_dir`. UsageError when the map
/// leaves a weight without a place or names what the model lacks, when a weight goes to disk and there is no folder, or one has
/// no bytes; then nothing was changed.
template <class H>
auto dispatch_model(const H& model, const DeviceMap& device_map, const DispatchOptions& options = {}) {
  auto module = detail::module_of(model);
  auto core = detail::dispatch(module, device_map, options);
  return DispatchedModel(std::move(module), std::move(core));
}

/// All weights on disk: `dispatch_model` with one place.
template <class H>
auto disk_offload(const H& model, const std::string& offload_dir, DispatchOptions options = {}) {
  options.offload_dir = offload_dir;
  return dispatch_model(model, DeviceMap{{"", Place::disk()}}, options);
}

}  // namespace accelerate
