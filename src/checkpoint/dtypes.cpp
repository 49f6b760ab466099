#include "checkpoint/dtypes.h"

#include <accelerate/core/error.h>
#include <fmt/format.h>

#include "core/escaped.h"
#include "distributed/tensor_text.h"

namespace accelerate::detail {

const DtypeFacts* facts_of(at::ScalarType dtype) { return find_dtype(dtype_name(dtype)); }

at::ScalarType scalar_type_of(const DtypeFacts& facts, const std::string& file, const std::string& tensor) {
  for (int8_t number = 0; number < static_cast<int8_t>(at::ScalarType::Undefined); ++number) {
    const auto dtype = static_cast<at::ScalarType>(number);
    if (facts_of(dtype) == &facts) return dtype;
  }
  throw CheckpointError(escaped(
      fmt::format("The tensor {} of {} has the dtype {}, which this LibTorch does not support.", tensor, file, facts.name)));
}

}  // namespace accelerate::detail
