#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What a model needs, from the headers of its files alone.
namespace accelerate::detail {

/// How large the weights of a model are with every floating-point number a float32, as they are trained.
struct WeightSizes {
  uint64_t tensors = 0;
  /// Bytes; a bool counts an eighth.
  double total = 0;
  double largest_layer = 0;
  /// The layers of that size.
  std::vector<std::string> largest_names;
};

/// Reads them from a folder of weights, one of its files, an index of shards, or a config.json beside them. A layer is a module
/// without modules in it, or all of a numbered block: of a list of layers. CheckpointError names what is missing.
WeightSizes read_weight_sizes(const std::filesystem::path& path);

/// What a model needs in one dtype, in bytes.
struct MemoryEstimate {
  std::string dtype;
  double largest_layer = 0, total_size = 0;
  /// Of weights, gradients and Adam's states the largest, as Python counts it; nothing where the dtype cannot be trained.
  std::optional<double> training;
};

/// The dtypes that there are estimates for.
std::vector<std::string> estimated_dtypes();

/// Their aliases, as PyTorch and users write them: "bf16" is "bfloat16".
std::map<std::string, std::string> other_dtype_names();

/// `dtype` is one of `estimated_dtypes`.
MemoryEstimate estimate_memory(const WeightSizes& sizes, std::string_view dtype);

/// The table that Python prints, without a newline at its end.
std::string estimates_table(const std::string& model, const std::vector<MemoryEstimate>& estimates);

/// What a rank needs to train a model with Adam, in bytes, activations left out. Shards of weights and gradients and optimizer
/// state are float32, in host memory with CPU offload.
struct ShardEstimate {
  std::string strategy;
  /// "float32", or "bf16": float32 shards, computing in bfloat16.
  std::string precision;
  double weights = 0, gradients = 0, optimizer = 0;
  /// What is whole for a while, in the dtype of the forward pass: weights and gradients of units.
  double units = 0;
  /// The most that is held at once, on the device and in host memory.
  double peak = 0, host = 0;
};

/// Estimates for all strategies and precisions on `ranks` ranks. A unit is the largest layer; one more is prefetched.
std::vector<ShardEstimate> estimate_sharding(const WeightSizes& sizes, int ranks);

/// They as a table.
std::string sharding_table(const std::string& model, int ranks, const std::vector<ShardEstimate>& estimates);

}  // namespace accelerate::detail
