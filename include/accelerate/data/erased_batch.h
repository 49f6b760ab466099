#pragma once

#include <memory>

namespace accelerate::detail {

/// A batch or sample of a type that only its reader knows.
using ErasedBatch = std::shared_ptr<void>;

}  // namespace accelerate::detail
