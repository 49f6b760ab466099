#pragma once

#include <ATen/core/TensorBody.h>
#include <accelerate/core/format.h>

namespace accelerate {

/// Tensors print as their number where they have no dimensions, which takes formats of numbers ("{:.3f}"), and else as LibTorch
/// streams them. One on a device is waited for.
template <>
struct FormatAs<at::Tensor> {
  static FormatArgument::Value value_of(const at::Tensor& tensor);
};

}  // namespace accelerate
