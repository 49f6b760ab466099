#pragma once

#include <ATen/core/TensorBody.h>

#include <vector>

namespace accelerate {

/// How the norm of gradients is taken.
struct ClipGradNormOptions {
  /// The p of the p-norm: any number, infinities included.
  double norm_type = 2;
  /// UsageError when the norm is infinite or no number. Reading it makes the CPU wait for the device.
  bool error_if_nonfinite = false;
  /// Gradients stay as they are, and the next step of their prepared optimizer scales them where it reads them: one pass over
  /// them instead of two, under fp16 of three. For accelerator.clip_grad_norm_, and between backward and step, with nothing that
  /// looks at the gradients after it. Where the optimizer has no fused kernel, or other parameters, they are scaled at once.
  bool in_step = false;
};

/// Scales the gradients of `parameters` down so that their norm, as if they were one vector, is at most `max_norm`, and returns
/// the norm that it was. Parameters without a gradient are left out, and one that is given twice counts once. Gradients may lie
/// on several devices; the CPU waits for none of them. UsageError for `in_step`, which is a matter of prepared optimizers.
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const ClipGradNormOptions& options = {});

/// Clamps each element of the gradients of `parameters` to [-clip_value, clip_value].
void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

}  // namespace accelerate
