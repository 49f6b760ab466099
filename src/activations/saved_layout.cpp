#include "activations/saved_layout.h"

#include <c10/util/ArrayRef.h>

#include <sstream>

namespace accelerate::detail {

SavedLayout::SavedLayout(const at::Tensor& tensor)
    : dtype(tensor.scalar_type()),
      sizes(tensor.is_nested() ? std::vector<int64_t>() : tensor.sizes().vec()),
      device(tensor.device()) {}

std::string SavedLayout::text() const {
  std::ostringstream text;
  text << c10::toString(dtype) << ' ' << c10::IntArrayRef(sizes) << " on " << device;
  return text.str();
}

}  // namespace accelerate::detail
