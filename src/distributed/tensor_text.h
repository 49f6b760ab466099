#pragma once

#include <ATen/core/TensorBody.h>

#include <string>

namespace accelerate::detail {

/// "float32[2, 3]", or "undefined": how messages name a tensor. The dtype has Python's name.
std::string describe(const at::Tensor& tensor);

/// "float32", "bfloat16", "int64", ...: Python's name of the dtype.
std::string dtype_name(at::ScalarType dtype);

/// Why `tensor` cannot be sent to other ranks, or nothing: "an undefined tensor".
std::string unsendable(const at::Tensor& tensor);

}  // namespace accelerate::detail
