#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <string>
#include <vector>

namespace accelerate::detail {

/// A tensor of a checkpoint that was not read yet.
struct StoredTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape = {};
  std::string file = {};
  /// Where its elements lie in the file, one after the other; only if `in_place`.
  uint64_t offset = 0;
  bool in_place = true;

  uint64_t bytes() const;
};

/// The files of a checkpoint: of a file itself, of an index (*.json) those that it names, of a folder either of both.
/// CheckpointError names what is missing.
struct WeightFileList {
  std::vector<std::string> files = {};
  /// What the index says, or "" when there is none; which file of `files` must have which tensor.
  std::string index = {};
  std::vector<std::pair<std::string, std::string>> tensors = {};
};
WeightFileList find_weight_files(const std::string& path);

/// All tensors of a checkpoint, or of a folder of offloaded weights, from the headers of its files alone. CheckpointError, naming
/// the file, when one is missing, damaged, or lacks what the index says.
std::vector<StoredTensor> list_stored_tensors(const std::string& path);

/// Reads one.
at::Tensor read_stored_tensor(const StoredTensor& tensor);

}  // namespace accelerate::detail
