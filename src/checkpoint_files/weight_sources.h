#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/byte_sink.h"
#include "formats/dtype_facts.h"

namespace accelerate::detail {

/// A tensor of a checkpoint that has not been read yet, in whichever files it lies.
struct WeightSource {
  std::string name;
  /// As safetensors spells it, or "" when that format lacks it.
  std::string safetensors_dtype;
  /// nullptr for what torch has no dtype for.
  const DtypeFacts* dtype = nullptr;
  std::vector<int64_t> shape = {};
  uint64_t bytes = 0;
  /// The place in the list of a tensor that this one is, under another name.
  std::optional<size_t> same_as = std::nullopt;
  /// Gives the elements in order to a function, piece by piece, and compares them with the file's checksum, if it has one.
  std::function<void(const std::function<void(const void*, uint64_t)>&)> read = {};
  /// Fills `size` bytes with those from `offset` on, both whole elements, and reads no others: what is left unread is not
  /// compared with a checksum. May be called from several threads at once.
  std::function<void(void* bytes, uint64_t size, uint64_t offset)> read_part = {};
};

/// The weights of a folder or file, and what keeps the files open that they are read from.
struct WeightSources {
  std::vector<WeightSource> tensors;
  std::vector<std::shared_ptr<const void>> owners;

  /// By name, or nullptr.
  const WeightSource* find(std::string_view name) const;
};

/// Reads the elements [begin, end) of the flattened tensor, such as a rank's shard. UsageError for a range outside of it and for
/// elements smaller than a byte; CheckpointError names the file when it is damaged.
void read_range(const WeightSource& tensor, uint64_t begin, uint64_t end, void* bytes);

/// The weights that `folder` holds: see merge_weights. CheckpointError tells what is missing.
WeightSources find_weight_sources(const std::filesystem::path& folder);

/// The weights of one file, or of the shards that an index (NAME.index.json) lists.
WeightSources open_weight_file(const std::filesystem::path& path);

/// The part of find_weight_sources for torch's distributed checkpoints. A dict that holds only the model's ({"model": {...}}) is
/// skipped in the names. CheckpointError when there is anything else than weights.
WeightSources open_distributed_weights(const std::filesystem::path& folder);

}  // namespace accelerate::detail
