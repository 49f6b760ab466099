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
};

/// Scales the gradients of `parameters` down so that their norm, as if they were one vector, is at most `max_norm`, and returns
/// the norm that it was. Parameters without a gradient are left out, and one that is given twice counts once. Gradients may lie
/// on several devices; the CPU waits for none of them.
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const ClipGradNormOptions& options = {});

/// Brings each element of the gradients of `parameters` into [-clip_value, clip_value].
void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

}  // namespace accelerate
