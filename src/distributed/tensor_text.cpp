#include "distributed/tensor_text.h"

#include <c10/core/ScalarType.h>

namespace accelerate::detail {

std::string dtype_name(at::ScalarType dtype) {
  // The second name is the old one ("float" for float32); the first is what Python prints.
  return std::string(c10::getDtypeNames(dtype).first);
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::string text = dtype_name(tensor.scalar_type()) + "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) text += (i ? ", " : "") + std::to_string(tensor.size(i));
  return text + "]";
}

std::string unsendable(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  if (tensor.layout() != at::kStrided || tensor.is_quantized())
    return "a sparse or quantized tensor of " + describe(tensor) + " (send its parts)";
  if (tensor.is_meta()) return "a tensor on the meta device, which has no data: " + describe(tensor);
  return "";
}

}  // namespace accelerate::detail
