#pragma once

#include <ATen/core/TensorBody.h>

namespace accelerate::detail {

/// Is it a weight whose bytes come and go (see residency)? They are in memory only while an operator uses it.
inline bool is_offloaded(const at::Tensor& tensor) { return tensor.key_set().has(c10::DispatchKey::DeferredInit); }

/// The elements of `tensor` as they lie in memory: contiguous, with conjugation and negation carried out that torch only
/// notes on a view. What is about to be looked at as bytes must go through this.
/// Without a gradient. Costs nothing for a tensor that is like that already.
inline at::Tensor plain(const at::Tensor& tensor) {
  at::Tensor values = tensor.is_conj() || tensor.is_neg() ? tensor.resolve_conj().resolve_neg() : tensor;
  if (is_offloaded(values)) values = values.clone();
  return (values.requires_grad() ? values.detach() : values).contiguous();
}

}  // namespace accelerate::detail
