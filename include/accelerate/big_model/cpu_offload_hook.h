#pragma once

#include <accelerate/big_model/dispatch.h>

namespace accelerate {

namespace detail {

class CpuOffload;

std::shared_ptr<CpuOffload> make_cpu_offload(std::shared_ptr<torch::nn::Module> module, std::optional<c10::Device> device,
                                             std::shared_ptr<CpuOffload> previous);
/// Offloads the model before it, and moves this one to its device, which is returned; nothing when the hook was removed.
std::optional<c10::Device> begin_call(CpuOffload& hook);

}  // namespace detail

/// Says when a model of `cpu_offload_with_hook` leaves its device. Copies mean the same model.
class UserCpuOffloadHook {
 public:
  /// Of no model.
  UserCpuOffloadHook() = default;
  explicit UserCpuOffloadHook(std::shared_ptr<detail::CpuOffload> hook) : hook_(std::move(hook)) {}

  /// Takes the weights back to the CPU.
  void offload() const;
  /// Calls move nothing any more; the weights stay where they are.
  void remove() const;
  const std::shared_ptr<detail::CpuOffload>& hook() const { return hook_; }

 private:
  std::shared_ptr<detail::CpuOffload> hook_;
};

/// A model that is offloaded to the CPU and moves to a device as a whole when it is called. Arguments come along; results stay
/// there.
template <detail::DispatchableModule M>
class HookedModel {
 public:
  HookedModel(std::shared_ptr<M> module, std::shared_ptr<detail::CpuOffload> hook)
      : module_(std::move(module)), hook_(std::move(hook)) {}

  template <class... Arguments>
  auto operator()(Arguments&&... arguments) const {
    const auto device = detail::begin_call(*hook_);
    const std::vector<std::string> no_keys;
    return detail::call_on_device(*module_, device, no_keys, /*back=*/false, std::forward<Arguments>(arguments)...);
  }

  M* operator->() const { return module_.get(); }
  M& operator*() const { return *module_; }
  const std::shared_ptr<M>& module() const { return module_; }

 private:
  std::shared_ptr<M> module_;
  std::shared_ptr<detail::CpuOffload> hook_;
};

/// For models that run one after the other, each too often to be paged in layer by layer:
///
///   auto [first, hook_of_first] = accelerate::cpu_offload_with_hook(net, torch::kCUDA);
///   auto [second, hook_of_second] = accelerate::cpu_offload_with_hook(other, torch::kCUDA, hook_of_first);
///   auto x = first(input);                              // net moves to the GPU
///   for (int i = 0; i < 50; ++i) x = second(x);         // net leaves it, the other model comes and stays
///   hook_of_second.offload();
///
/// The device is by default the first accelerator, else the CPU. Calls of such models exclude each other.
template <class H>
auto cpu_offload_with_hook(const H& model, std::optional<c10::Device> execution_device = {},
                           const UserCpuOffloadHook& prev_module_hook = {}) {
  auto module = detail::module_of(model);
  auto hook = detail::make_cpu_offload(module, execution_device, prev_module_hook.hook());
  HookedModel offloaded(std::move(module), hook);
  return std::pair(std::move(offloaded), UserCpuOffloadHook(std::move(hook)));
}

}  // namespace accelerate
