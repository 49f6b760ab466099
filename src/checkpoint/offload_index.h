#pragma once

#include <string>
#include <vector>

#include "checkpoint/stored_tensors.h"

/// Folders of offloaded weights: a file of raw elements for each, and an index.
namespace accelerate {

inline constexpr const char* kOffloadIndexName = "index.json";

/// What the index of a folder says, an entry each. CheckpointError, naming the file, when it is damaged or a file is missing.
std::vector<StoredTensor> list_offloaded(const std::string& folder);

/// Makes a folder, and keeps other writers waiting. Network file systems may have no such locks; there nobody waits.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// Writes weights into such a folder, one after the other, while no other writer does. What the folder has already stays, under
/// other names; under the same, where it has the same bytes.
class OffloadWriter {
 public:
  /// Makes the folder. CheckpointError when it cannot be made, or has an index that is none.
  explicit OffloadWriter(std::string folder);

  /// Writes a tensor. CheckpointError when it cannot be written: without room, or without permission.
  StoredTensor write(const std::string& name, const at::Tensor& tensor);
  /// Writes the index.
  void finish();

 private:
  std::string folder_;
  FolderLock lock_;
  std::vector<StoredTensor> written_;
};

}  // namespace accelerate
