#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/stored_tensors.h"
#include "core/file.h"

/// Folders of offloaded weights: a file of raw elements for each, and an index.
namespace accelerate::detail {

inline constexpr const char* kOffloadIndexName = "index.json";

/// What the index of a folder says, an entry each. CheckpointError, naming the file, when it is damaged or a file is missing.
std::vector<StoredTensor> list_offloaded(const std::string& folder);

/// Makes a folder, and keeps other writers waiting. Network file systems may have no such locks; there nobody waits.
/// CheckpointError when it cannot be made or opened.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  /// Makes renames in the folder survive a loss of power, where the file system can.
  void sync() const;

 private:
  int descriptor_ = -1;
};

/// Writes weights into such a folder, one after the other, while no other writer does. What the folder has already stays, under
/// other names; under the same, where it has the same bytes. New files are staged beside their places until `finish`; without it
/// nothing changes: models that use the folder keep their weights.
class OffloadWriter {
 public:
  /// Makes the folder. CheckpointError when it cannot be made, or has an index that is none.
  explicit OffloadWriter(std::string folder);

  struct Written {
    StoredTensor tensor;
    /// Where its bytes are until `finish`; empty when they are in their place already.
    std::string staged = {};
  };
  /// Writes a tensor. CheckpointError when it cannot be written: without room, or without permission.
  Written write(const std::string& name, const at::Tensor& tensor);
  /// Writes the index, beside its place like all others: what is left for `finish` are renames.
  void stage_index();
  /// Moves everything to its place. CheckpointError when something cannot be moved, and then nothing is.
  void finish();

 private:
  OutputFile& stage(const std::string& path);

  std::string folder_;
  FolderLock lock_;
  std::vector<StoredTensor> written_;
  std::vector<std::unique_ptr<OutputFile>> staged_;
};

}  // namespace accelerate::detail
