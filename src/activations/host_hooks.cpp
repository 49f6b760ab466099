#include "activations/host_hooks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <optional>

#include "activations/kept_tensor.h"

namespace accelerate::detail {
namespace {

std::string scope_name() { return "An operator"; }

/// Whether copies between it and pinned memory need not be waited for: later ones of its stream come after them.
bool copies_in_order(const at::Device& device) { return device.is_cuda(); }

/// With the same strides where they are those of a tensor that fills its memory: kernels choose by them, and round by that
/// choice.
at::Tensor host_copy(const at::Tensor& tensor) {
  if (!copies_in_order(tensor.device()) || tensor.layout() != at::kStrided || tensor.is_nested()) return tensor.to(at::kCPU);
  const auto options = at::TensorOptions(tensor.scalar_type()).device(at::kCPU).pinned_memory(true);
  const auto copy = tensor.is_non_overlapping_and_dense() ? at::empty_strided(tensor.sizes(), tensor.strides(), options)
                                                          : at::empty(tensor.sizes(), options);
  return copy.copy_(tensor, /*non_blocking=*/true);
}

class HostHooks final : public SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override {
    if (tensor.is_cpu() || is_weight(tensor)) {
      kept_.emplace(tensor);
    } else {
      device_ = tensor.device();
      copy_ = host_copy(tensor.detach());
    }
  }

  at::Tensor call_unpack_hook() override {
    if (kept_) return kept_->get(&scope_name);
    return copy_.to(*device_, copies_in_order(*device_));
  }

 private:
  std::optional<KeptTensor> kept_;
  std::optional<at::Device> device_;
  at::Tensor copy_;
};

}  // namespace

std::unique_ptr<SavedVariableHooks> HostHookMaker::make_hooks() { return std::make_unique<HostHooks>(); }

}  // namespace accelerate::detail
