#pragma once

#include <ATen/core/TensorBody.h>
#include <ATen/ops/zero.h>

#include "training/step_recording.h"

namespace accelerate::detail {

/// Drops a gradient or fills it with zeros. LibTorch's own detaches it first, which gradients that are views of a bucket refuse.
inline void zero_gradient(const at::Tensor& parameter, bool set_to_none) {
  auto& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return;
  if (set_to_none) {
    if (auto* recording = StepRecording::current()) recording->note_drop(gradient);
    gradient = at::Tensor();
    return;
  }
  if (gradient.grad_fn()) gradient.detach_();
  gradient.set_requires_grad(false);
  gradient.zero_();
}

}  // namespace accelerate::detail
