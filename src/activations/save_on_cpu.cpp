#include <accelerate/activations/save_on_cpu.h>

#include "activations/host_hooks.h"

namespace accelerate {

struct SaveOnCpuScope::Parts {
  detail::HostHookMaker maker;
  detail::HookScope scope{maker};
};

SaveOnCpuScope::SaveOnCpuScope() : parts_(std::make_unique<Parts>()) {}

SaveOnCpuScope::~SaveOnCpuScope() = default;

}  // namespace accelerate
