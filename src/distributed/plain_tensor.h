#pragma once

#include <ATen/core/TensorBody.h>

namespace accelerate {

/// The elements of `tensor` as they lie in memory: contiguous, with conjugation and negation carried out that torch only
/// notes on a view. What is about to be looked at as bytes must go through this.
/// Without a gradient. Costs nothing for a tensor that is like that already.
inline at::Tensor plain(const at::Tensor& tensor) {
  const at::Tensor values = tensor.is_conj() || tensor.is_neg() ? tensor.resolve_conj().resolve_neg() : tensor;
  return (values.requires_grad() ? values.detach() : values).contiguous();
}

}  // namespace accelerate
