#pragma once

#include <accelerate/checkpoint/tensor_dict.h>

#include <string>

namespace accelerate {

struct SaveModelOptions {
  /// The most that a file holds: "10GB", "500MB", or a number of bytes as in "4096". What is larger is cut into shards with an
  /// index.
  std::string max_shard_size = "10GB";
  /// Safetensors files; off: files of torch.save.
  bool safe_serialization = true;
};

/// Writes weights as Python's save_model does: model.safetensors, or shards and model.safetensors.index.json (pytorch_model.bin
/// and its index without safe_serialization). Weights that are tied are stored once. The files replace all older weights of the
/// folder, of either format, as one set: every one of them is durable before the first takes its place, and the index comes
/// last. Whatever else is in the folder stays. CheckpointError leaves the older weights as they were.
void save_weights(const TensorDict& weights, const std::string& folder, const SaveModelOptions& options = {});

/// Reads what save_weights, save_file or Python wrote: a file, the index of shards, or a folder that has either. CheckpointError
/// names what is missing.
TensorDict load_weights(const std::string& path);

}  // namespace accelerate
