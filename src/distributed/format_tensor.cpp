#include <ATen/core/Formatting.h>
#include <accelerate/distributed/format_tensor.h>
#include <c10/util/StringUtil.h>

#include <sstream>

namespace accelerate {

using namespace detail;

FormatArgument::Value FormatAs<at::Tensor>::value_of(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.dim() == 0 && tensor.layout() == at::kStrided && !tensor.is_meta()) {
    const auto dtype = tensor.scalar_type();
    if (dtype == at::kBool) return tensor.item<bool>();
    if (dtype == at::kDouble) return tensor.item<double>();
    if (at::isFloatingType(dtype)) return tensor.item<float>();
    if (dtype == at::kUInt64) return tensor.item().toUInt64();
    if (at::isIntegralType(dtype, /*includeBool=*/false)) return tensor.item<int64_t>();
  }
  std::ostringstream text;
  if (tensor.defined() && tensor.is_meta()) {
    // Without values LibTorch fails to print.
    text << "[ " << tensor.toString() << "{" << c10::Join(",", tensor.sizes()) << "} ]";
  } else {
    at::print(text, tensor, /*linesize=*/80);
  }
  return text.str();
}

}  // namespace accelerate
