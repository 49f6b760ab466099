#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace accelerate {

struct MergeOptions {
  /// Write a safetensors file, not a torch file.
  bool safe_serialization = true;
  /// Delete the folder that was merged, once the new file is durable.
  bool remove_checkpoint_dir = false;
};

/// What merging did.
struct MergeResult {
  std::filesystem::path file;
  uint64_t tensors = 0, bytes = 0;
  /// Aliases of other tensors, which were left out; a safetensors file keeps only the first name.
  std::vector<std::string> left_out;
};

/// Merges the weights in `folder` into one file: shards with an index (safetensors or torch files), a single weights file, or a
/// torch distributed checkpoint (FSDP's SHARDED_STATE_DICT). `out` is a folder, created if needed, for model.safetensors or
/// pytorch_model.bin; or, when it ends in .safetensors or .bin, the file. Works tensor by tensor: memory holds one chunk, or one
/// tensor if its elements must be rearranged. CheckpointError when something is missing or corrupt; then nothing is written or
/// removed.
MergeResult merge_weights(const std::filesystem::path& folder, const std::filesystem::path& out,
                          const MergeOptions& options = {});

}  // namespace accelerate
