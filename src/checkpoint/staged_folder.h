#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace accelerate {

/// A folder that is written aside and becomes visible all at once, in the place of one that may be there already. Until it is
/// committed nothing of that one is touched; without it, nothing is left behind.
class StagedFolder {
 public:
  /// Makes an empty folder at `aside`, on the file system of `target`, and the folders above both. What another run left there
  /// is removed. CheckpointError when it cannot be made.
  StagedFolder(std::filesystem::path target, std::filesystem::path aside);
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  /// Where to write.
  const std::filesystem::path& path() const { return aside_; }
  /// Makes it durable and puts it into its place. Of the folder that it replaces everything is kept that is not `replaced`, by
  /// the name of an entry, and has no counterpart in this one.
  void commit(const std::function<bool(const std::string&)>& replaced);

 private:
  /// Whether it is there. CheckpointError when it is no folder.
  bool check_target() const;
  /// Removes the folder that unfinished ones are in when this was the only one; what holds anything else is not removed.
  void remove_parent() const;

  std::filesystem::path target_, aside_;
  bool committed_ = false;
};

/// Makes a folder and those above it. CheckpointError when it cannot be made.
void make_folder(const std::filesystem::path& folder);
/// Makes what was renamed, made or removed in `folder` survive a loss of power. CheckpointError when that cannot be had.
void sync_folder_entries(const std::filesystem::path& folder);

}  // namespace accelerate
