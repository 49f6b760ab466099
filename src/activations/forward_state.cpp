#include "activations/forward_state.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <cstring>
#include <mutex>

namespace accelerate::detail {
namespace {

constexpr std::array kAutocastDevices = {at::kCPU, at::kCUDA, at::kXPU,  at::kMPS,        at::kHPU,
                                         at::kIPU, at::kXLA,  at::kMTIA, at::kPrivateUse1};

at::Tensor drawn_by(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_back(at::Generator generator, const at::Tensor& numbers) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(numbers);
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

/// The accelerators that this process uses: one without a context has drawn nothing, and asking would make it one.
std::vector<at::Device> used_accelerators() {
  std::vector<at::Device> devices;
  const auto type = at::getAccelerator();
  if (!type) return devices;
  const auto& hooks = at::globalContext().getAcceleratorHooksInterface(*type);
  for (c10::DeviceIndex i = 0; i < c10::impl::getDeviceGuardImpl(*type)->deviceCount(); ++i) {
    if (hooks.hasPrimaryContext(i)) devices.emplace_back(*type, i);
  }
  return devices;
}

}  // namespace

ForwardState::Autocast ForwardState::Autocast::current() {
  Autocast autocast{.dtypes = {}, .is_cached = at::autocast::is_autocast_cache_enabled()};
  static_assert(std::tuple_size_v<decltype(dtypes)> == kAutocastDevices.size());
  std::transform(kAutocastDevices.begin(), kAutocastDevices.end(), autocast.dtypes.begin(), &at::autocast::get_autocast_dtype);
  return autocast;
}

void ForwardState::Autocast::apply() const {
  for (size_t i = 0; i < dtypes.size(); ++i) at::autocast::set_autocast_dtype(kAutocastDevices[i], dtypes[i]);
  at::autocast::set_autocast_cache_enabled(is_cached);
}

ForwardState::ForwardState(bool with_generators)
    : autocast_(Autocast::current()), keys_(c10::impl::tls_local_dispatch_key_set()) {
  const auto accelerators = used_accelerators();
  if (!accelerators.empty()) device_ = c10::impl::getDeviceGuardImpl(accelerators.front().type())->getDevice();
  if (!with_generators) return;
  const auto add = [this](const at::Generator& generator) { generators_.push_back({generator, drawn_by(generator)}); };
  add(at::globalContext().defaultGenerator(at::kCPU));
  for (const auto& device : accelerators) add(at::globalContext().defaultGenerator(device));
}

void ForwardState::drop_unused_generators() {
  std::erase_if(generators_, [](const Generator& each) { return same_bytes(each.numbers, drawn_by(each.generator)); });
}

ForwardStateScope::ForwardStateScope(const ForwardState& state)
    : autocast_before_(ForwardState::Autocast::current()), keys_(state.keys_), device_(state.device_) {
  for (const auto& [generator, numbers] : state.generators_) {
    generators_before_.push_back({generator, drawn_by(generator)});
    set_back(generator, numbers);
  }
  state.autocast_.apply();
}

ForwardStateScope::~ForwardStateScope() {
  at::autocast::clear_cache();
  autocast_before_.apply();
  for (const auto& [generator, numbers] : generators_before_) set_back(generator, numbers);
}

}  // namespace accelerate::detail
