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
  /// Tensors that were another one under a second name; a safetensors file keeps the first name only.
  std::vector<std::string> left_out;
};

/// Makes one file of the weights in `folder`: shards with an index (safetensors or torch files), a single file of weights, or a
/// distributed checkpoint of torch (what FSDP saves as SHARDED_STATE_DICT). `out` is a folder, made if need be, in which the file
/// is called model.safetensors or pytorch_model.bin; or, when it ends in .safetensors or .bin, the file. Tensor by tensor, so
/// that memory holds one piece, or where elements must be rearranged one tensor. CheckpointError when something is missing or
/// damaged, and then nothing is written or removed.
MergeResult merge_weights(const std::filesystem::path& folder, const std::filesystem::path& out,
                          const MergeOptions& options = {});

}  // namespace accelerate
