#pragma once

#include <accelerate/core/error.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "formats/pickle_value.h"

namespace accelerate::detail {

/// Thrown when a pickle extends past the end of the given bytes.
class PickleCutShort : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// What a reader allows beyond plain data and tensors.
struct PickleRules {
  /// Classes ("module.Name") whose instances become kObject: their arguments and state are kept, nothing of them is run.
  std::span<const std::string_view> objects = {};
};

/// Reads one pickle (protocol 0 to 5) from the start of `bytes`, which are not trusted. Nothing is ever executed: the few names
/// that plain data, tensors and numpy arrays need are understood, every other one is refused by name. Cycles, values nested
/// deeper than 400, keys given twice, and values that unfold to far more than their bytes are refused too; memory follows the
/// bytes that are there, never a count that they state. All as CheckpointError with `file` and the position. `used` receives
/// the pickle's length.
PickleTree read_pickle(std::string_view bytes, const std::string& file, const PickleRules& rules = {}, size_t* used = nullptr);

}  // namespace accelerate::detail
