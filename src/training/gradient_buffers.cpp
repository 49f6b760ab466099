#include "training/gradient_buffers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include "training/step_recording.h"

namespace accelerate::detail {

void GradientBuffers::collect(const std::vector<at::Tensor>& parameters) {
  if (StepRecording::current()) throw NotRecordable("gradients are accumulated in a separate dtype");
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    auto& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    auto& [sum, is_empty] = buffers_[parameter.unsafeGetTensorImpl()];
    if (!sum.defined()) sum = at::empty_like(gradient, gradient.options().dtype(dtype_));
    if (sum.device() != gradient.device()) sum = sum.to(gradient.device());
    if (is_empty) {
      sum.copy_(gradient);
    } else {
      sum.add_(gradient);
    }
    is_empty = false;
    gradient = at::Tensor();
  }
}

void GradientBuffers::give_back(const std::vector<at::Tensor>& parameters) {
  if (StepRecording::current()) throw NotRecordable("gradients are accumulated in a separate dtype");
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    const auto found = buffers_.find(parameter.unsafeGetTensorImpl());
    if (found == buffers_.end() || found->second.is_empty) continue;
    const auto sum = found->second.sum.to(parameter.options(), /*non_blocking=*/false, /*copy=*/true);
    auto& gradient = parameter.mutable_grad();
    gradient = gradient.defined() ? sum.add_(gradient) : sum;
    found->second.is_empty = true;
  }
}

at::Tensor GradientBuffers::sum_of(const at::Tensor& parameter) const {
  const auto found = buffers_.find(parameter.unsafeGetTensorImpl());
  return found == buffers_.end() || found->second.is_empty ? at::Tensor() : found->second.sum;
}

void GradientBuffers::set_sum(const at::Tensor& parameter, const at::Tensor& sum) {
  buffers_[parameter.unsafeGetTensorImpl()] = {sum.to(parameter.options().dtype(dtype_), /*non_blocking=*/false, /*copy=*/true),
                                               /*is_empty=*/false};
}

}  // namespace accelerate::detail
