#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/byte_sink.h"
#include "formats/dtype_facts.h"

namespace accelerate::detail {

/// A tensor that can be written somewhere else.
struct MergeableTensor {
  std::string name;
  /// As safetensors spells it, or "" when that format lacks it.
  std::string safetensors_dtype;
  /// nullptr for what torch has no dtype for.
  const DtypeFacts* dtype = nullptr;
  std::vector<int64_t> shape = {};
  uint64_t bytes = 0;
  /// The place in the list of a tensor that this one is, under another name.
  std::optional<size_t> same_as = std::nullopt;
  /// Gives the elements in order to a function, piece by piece.
  std::function<void(const std::function<void(const void*, uint64_t)>&)> read = {};
};

/// The weights of a folder, and what keeps the files open that they are read from.
struct MergeableWeights {
  std::vector<MergeableTensor> tensors;
  std::vector<std::shared_ptr<const void>> owners;
};

/// Finds the weights that `folder` holds, see merge_weights.
MergeableWeights find_mergeable_weights(const std::filesystem::path& folder);

/// The weights of one file, or of the shards that an index (NAME.index.json) lists.
MergeableWeights open_weight_file(const std::filesystem::path& path);

/// The part of find_mergeable_weights for torch's distributed checkpoints: a `.metadata` and .distcp files.
MergeableWeights open_distributed_checkpoint(const std::filesystem::path& folder);

}  // namespace accelerate::detail
