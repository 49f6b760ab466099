#include "residency/device_alignment.h"

#include <ATen/core/TensorBody.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "residency/empty_scope.h"
#include "residency/interception.h"

namespace accelerate::detail {
namespace {

/// Operators that copy from device to device, that ask about several tensors without reading them, or that take lists of tensors
/// each on its own device.
constexpr std::array kAcrossDevices = std::to_array<std::string_view>(
    {"aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize", "aten::_to_copy", "aten::set_", "aten::set_data",
     "aten::is_set_to", "aten::is_same_size", "aten::result_type", "aten::resize_as_", "aten::resize_as_sparse_",
     "aten::_has_compatible_shallow_copy_type", "aten::_backward"});
constexpr std::array kAcrossDevicesPrefixes =
    std::to_array<std::string_view>({"aten::_foreach_", "aten::_fused_", "aten::_amp_", "c10d::"});
/// Arguments that are on the CPU wherever the others are.
constexpr std::array kOnCpu = std::to_array<std::string_view>({"lengths", "batch_sizes"});

bool is_across_devices(std::string_view name) {
  return std::find(kAcrossDevices.begin(), kAcrossDevices.end(), name) != kAcrossDevices.end() ||
         std::any_of(kAcrossDevicesPrefixes.begin(), kAcrossDevicesPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

bool stays(const c10::Argument& argument) {
  return is_written(argument) || std::find(kOnCpu.begin(), kOnCpu.end(), argument.name()) != kOnCpu.end();
}

/// Kernels take a number from the CPU, but not inside a list.
bool is_number_on_cpu(const at::Tensor& tensor) { return tensor.dim() == 0 && tensor.is_cpu(); }

/// Where an operator should run, as its arguments are seen one by one.
class Target {
 public:
  explicit Target(std::optional<c10::Device> last) : last_(last) {}

  void see(const at::Tensor& tensor, bool written) {
    if (!tensor.defined()) return;
    if (device_ && *device_ != tensor.device()) several_ = true;
    const Claim claim = claim_of(tensor, written);
    if (device_ && claim <= claim_) return;
    claim_ = claim;
    device_ = tensor.device();
  }

  bool several() const { return several_; }
  bool is_of_weight() const { return claim_ == Claim::weight; }
  c10::Device device() const { return *device_; }

 private:
  enum class Claim { number, tensor, where_we_are, weight, written };

  Claim claim_of(const at::Tensor& tensor, bool written) const {
    if (written) return Claim::written;
    if (tensor.dim() == 0) return Claim::number;
    if (has_key(tensor)) return Claim::weight;
    return tensor.device() == last_ ? Claim::where_we_are : Claim::tensor;
  }

  std::optional<c10::Device> last_, device_;
  Claim claim_ = Claim::number;
  bool several_ = false;
};

// Scopes belong to a thread, as the dispatcher's own do.
thread_local AlignmentScope* innermost_alignment = nullptr;

/// Moves an argument to a device; returns whether it was elsewhere.
bool bring(c10::IValue& argument, c10::Device device) {
  bool moved = false;
  argument = map_tensors(argument, [&, alone = argument.isTensor()](const at::Tensor& tensor) {
    if (tensor.device() == device || (alone && is_number_on_cpu(tensor))) return tensor;
    moved = true;
    // Not behind our back: it may be a weight that must be paged in.
    return tensor.to(device);
  });
  return moved;
}

}  // namespace

AlignmentScope::AlignmentScope() : outer_(innermost_alignment), included_((intercept_operators(), kKey)) {
  innermost_alignment = this;
}

AlignmentScope::~AlignmentScope() { innermost_alignment = outer_; }

AlignmentScope* AlignmentScope::current() { return innermost_alignment; }

bool align_devices(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!c10::impl::tls_local_dispatch_key_set().included_.has(kKey)) return false;
  const EmptyScope* making = EmptyScope::current();
  if (making && making->device().is_meta()) return false;
  AlignmentScope* scope = making ? nullptr : AlignmentScope::current();
  const auto& parameters = op.schema().arguments();
  const size_t first = stack->size() - parameters.size();
  Target target(making ? making->device() : scope ? scope->device : std::nullopt);
  for (size_t i = 0; i < parameters.size(); ++i) {
    visit_tensors((*stack)[first + i], [&](const at::Tensor& tensor) { target.see(tensor, is_written(parameters[i])); });
  }
  if (scope && target.is_of_weight()) scope->device = target.device();
  if (!target.several() || is_across_devices(op.schema().name())) return false;
  bool moved = false;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!stays(parameters[i])) moved |= bring((*stack)[first + i], target.device());
  }
  return moved;
}

}  // namespace accelerate::detail
