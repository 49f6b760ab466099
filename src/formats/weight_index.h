#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/byte_source.h"

namespace accelerate::detail {

/// The content of `model.safetensors.index.json` and the like.
struct WeightIndex {
  /// Tensor and file, in the order of the text. Files lie beside the index: no other folder can be named.
  std::deque<std::pair<std::string, std::string>> weight_map;
  std::optional<uint64_t> total_size;

  /// The files, each once, in the order in which they are first named.
  std::vector<std::string> files() const;
};

/// Reads an index that is not trusted: {"metadata": ..., "weight_map": {...}}, or the bare map. CheckpointError, naming the
/// file, when it is not JSON, has no map, names a tensor twice or a file outside its folder.
WeightIndex read_weight_index(const ByteSource& source);

/// The text that Python writes: indented by two, keys sorted, a newline at the end.
std::string write_weight_index(const WeightIndex& index);

}  // namespace accelerate::detail
