#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <accelerate/core/error.h>
#include <accelerate/training/clip.h>

#include <string>
#include <unordered_set>

#include "training/gradient_norm.h"

namespace accelerate {

using namespace detail;
namespace {

std::vector<detail::TensorGroup> gradients_by_kind(const std::vector<at::Tensor>& parameters) {
  std::vector<detail::TensorGroup> kinds;
  // LibTorch lists a weight that two modules share twice.
  std::unordered_set<const void*> seen;
  for (const auto& parameter : parameters) {
    const auto& gradient = parameter.grad();
    if (gradient.defined() && seen.insert(gradient.unsafeGetTensorImpl()).second) detail::add_to_groups(kinds, gradient);
  }
  return kinds;
}

}  // namespace

namespace detail {

at::Tensor total_norm_of(const std::vector<TensorGroup>& kinds, double norm_type) {
  if (kinds.empty()) return at::zeros({});
  std::vector<at::Tensor> norms;
  for (const auto& kind : kinds) {
    for (const auto& norm : at::_foreach_norm(kind.tensors, norm_type))
      norms.push_back(norm.to(kinds.front().device, norm.scalar_type(), /*non_blocking=*/false));
  }
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

void check_finite(const at::Tensor& total, const ClipGradNormOptions& options) {
  if (!options.error_if_nonfinite || at::isfinite(total).item<bool>()) return;
  throw UsageError("clip_grad_norm_: the total norm of order " + std::to_string(options.norm_type) + " of the gradients is " +
                   std::to_string(total.item<double>()) +
                   ", which cannot be clipped. Check the loss for non-finite values, or turn error_if_nonfinite off.");
}

}  // namespace detail

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const ClipGradNormOptions& options) {
  if (options.in_step)
    throw UsageError("clip_grad_norm_: in_step is for accelerator.clip_grad_norm_, which knows the optimizer.");
  const at::NoGradGuard no_grad;
  const auto kinds = gradients_by_kind(parameters);
  const auto total = detail::total_norm_of(kinds, options.norm_type);
  detail::check_finite(total, options);
  // A factor of at most 1 is applied always: asking whether it is needed would wait for the device.
  const auto factor = at::clamp(total.add(1e-6).reciprocal().mul(max_norm), std::nullopt, 1.0);
  for (const auto& kind : kinds) at::_foreach_mul_(kind.tensors, factor.to(kind.device, factor.scalar_type()));
  return total;
}

void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  const at::NoGradGuard no_grad;
  for (const auto& kind : gradients_by_kind(parameters)) {
    at::_foreach_clamp_min_(kind.tensors, -clip_value);
    at::_foreach_clamp_max_(kind.tensors, clip_value);
  }
}

}  // namespace accelerate
