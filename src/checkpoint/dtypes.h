#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "formats/dtype_facts.h"

namespace accelerate::detail {

/// What files call this dtype; nullptr when none can hold it.
const DtypeFacts* facts_of(at::ScalarType dtype);
/// The dtype that files call so. CheckpointError, naming `file` and `tensor`, when this LibTorch lacks it.
at::ScalarType scalar_type_of(const DtypeFacts& facts, const std::string& file, const std::string& tensor);

}  // namespace accelerate::detail
