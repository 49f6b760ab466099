#include <accelerate/big_model/cpu_offload_hook.h>
#include <accelerate/core/error.h>
#include <accelerate/training/find_executable_batch_size.h>
#include <torch/nn/module.h>

#include "distributed/accelerators.h"

namespace accelerate {

using namespace detail;
namespace detail {

/// A model that is on the CPU or on its device.
class CpuOffload {
 public:
  CpuOffload(std::shared_ptr<torch::nn::Module> module, c10::Device device, std::shared_ptr<CpuOffload> previous)
      : module_(std::move(module)), device_(device), previous_(std::move(previous)) {
    offload();
  }

  void offload() { move_to(c10::kCPU); }
  void remove() { removed_ = true; }

  std::optional<c10::Device> begin_call() {
    if (removed_) return std::nullopt;
    if (previous_ && !previous_->is_on(c10::kCPU)) {
      previous_->offload();
      clear_device_cache();
    }
    if (!is_on(device_)) move_to(device_);
    return device_;
  }

 private:
  /// As far as the first parameter tells.
  bool is_on(c10::Device device) const {
    const auto parameters = module_->parameters();
    return !parameters.empty() && parameters[0].device() == device;
  }

  /// Not by `Module::to`, which would part weights that are tied by their memory.
  void move_to(c10::Device device) { dispatch(module_, DeviceMap{{"", Place(device)}}, {.main_device = device}); }

  std::shared_ptr<torch::nn::Module> module_;
  c10::Device device_;
  std::shared_ptr<CpuOffload> previous_;
  bool removed_ = false;
};

std::shared_ptr<CpuOffload> make_cpu_offload(std::shared_ptr<torch::nn::Module> module, std::optional<c10::Device> device,
                                             std::shared_ptr<CpuOffload> previous) {
  const Place place = device ? Place(*device) : accelerator_count() > 0 ? Place(0) : Place(c10::kCPU);
  return std::make_shared<CpuOffload>(std::move(module), place.device(), std::move(previous));
}

std::optional<c10::Device> begin_call(CpuOffload& hook) { return hook.begin_call(); }

}  // namespace detail

namespace {

detail::CpuOffload& hook_in(const UserCpuOffloadHook& hook) {
  if (!hook.hook()) throw UsageError("This hook belongs to no model. Get one from cpu_offload_with_hook.");
  return *hook.hook();
}

}  // namespace

void UserCpuOffloadHook::offload() const { hook_in(*this).offload(); }

void UserCpuOffloadHook::remove() const { hook_in(*this).remove(); }

}  // namespace accelerate
