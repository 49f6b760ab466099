#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Which file of a sharded checkpoint a tensor goes to. Rules and names are those of huggingface_hub.
namespace accelerate::detail {

/// Bytes of "5GB", "200MB", "1.5 KB" (powers of 1000). UsageError for anything else.
uint64_t parse_shard_size(std::string_view text);

/// How weights are stored: decides the names of files.
enum class WeightFormat { kSafetensors, kTorch };

/// "model.safetensors", "pytorch_model-00002-of-00004.bin": `shard` counts from 1; of one shard there is no number.
std::string weight_file_name(WeightFormat format, size_t shard = 1, size_t shards = 1);
/// "model.safetensors.index.json" or "pytorch_model.bin.index.json".
std::string weight_index_name(WeightFormat format);
/// Is it a name that weight_file_name makes, for any number of shards?
bool is_weight_file_name(WeightFormat format, std::string_view name);

/// A tensor to be placed.
struct WeightToPlace {
  std::string name;
  uint64_t bytes = 0;
  /// Tensors with the same storage go into one file and count once; none: the storage is not shared.
  std::optional<uint64_t> storage = std::nullopt;
};

/// The names of each shard's tensors, in order, and the bytes of all storages.
struct ShardPlan {
  std::vector<std::vector<std::string>> shards;
  uint64_t total_size = 0;
};

/// Walks the tensors in order and begins a new shard when one would grow beyond `most_bytes`. A tensor larger than that has a
/// shard to itself. No tensors make one empty shard.
ShardPlan plan_shards(const std::vector<WeightToPlace>& weights, uint64_t most_bytes);

}  // namespace accelerate::detail
