#pragma once

#include <ATen/core/TensorBody.h>

namespace accelerate {

/// The elements of `tensor` as they lie in memory: contiguous, with conjugation and negation carried out that torch only
/// notes on a view. What is about to be looked at as bytes must go through this.
inline at::Tensor plain(const at::Tensor& tensor) { return tensor.detach().resolve_conj().resolve_neg().contiguous(); }

}  // namespace accelerate
