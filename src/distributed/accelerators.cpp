#include "distributed/accelerators.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace accelerate::detail {
namespace {

/// LibTorch 2.9 has no such question to an allocator.
template <typename Allocator>
std::optional<double> free_memory_of(Allocator& allocator, c10::DeviceIndex index) {
  if constexpr (requires { allocator.getMemoryInfo(index); }) {
    return static_cast<double>(allocator.getMemoryInfo(index).first);
  } else {
    return std::nullopt;
  }
}

}  // namespace

int accelerator_count() {
  const auto type = at::getAccelerator();
  return type ? c10::impl::getDeviceGuardImpl(*type)->deviceCount() : 0;
}

std::optional<double> free_accelerator_memory(int index) {
  const c10::Device device(at::getAccelerator(/*checked=*/true).value(), static_cast<c10::DeviceIndex>(index));
  try {
    // A device that was never used has no context yet, and one whose context cannot be made has no memory for us.
    at::globalContext().lazyInitDevice(device.type());
    const c10::DeviceGuard guard(device);
    auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
    return allocator == nullptr ? std::nullopt : free_memory_of(*allocator, device.index());
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

}  // namespace accelerate::detail
