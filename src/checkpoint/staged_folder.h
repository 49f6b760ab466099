#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "checkpoint/save_lock.h"

namespace accelerate::detail {

/// A folder that is staged and becomes visible all at once, replacing one that may exist already. Until it is
/// committed nothing of that one is touched; without it, nothing is left behind. Several processes may write into it, of which
/// one decides: it commits the folder or, ending without that, removes it.
///
/// Where a file system cannot swap two folders atomically, the old one is first moved to `aside`.old; a process that dies in
/// between leaves it there, and `recover` puts things right.
class StagedFolder {
 public:
  /// Makes an empty folder at `aside`, on the file system of `target`, and the folders above both. While it lives it has the
  /// lock of the file `lock`. What a run that ended left there is recovered or removed. CheckpointError when it cannot be made,
  /// another process has the lock, or `target` is not to be replaced: a file, or a folder with something mounted at or in it.
  StagedFolder(std::filesystem::path target, std::filesystem::path aside, std::filesystem::path lock);
  /// One that another process of the run has made, which decides until it is told otherwise. While it lives the lock is not free,
  /// also when that process is gone. CheckpointError when it is not there, or another run has the lock.
  static std::shared_ptr<StagedFolder> join(std::filesystem::path target, std::filesystem::path aside,
                                            std::filesystem::path lock);
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  /// Where to write.
  const std::filesystem::path& path() const { return aside_; }
  /// Where it will be.
  const std::filesystem::path& target() const { return target_; }
  /// Makes it durable and puts it into its place, with the owner and permissions of the folder that it replaces. Everything in
  /// that one is kept that is not `replaced`, by its path from there, and has no counterpart in this one. CheckpointError, with
  /// the old folder as it was, when anything fails before the new one is in its place.
  void commit(const std::function<bool(const std::string&)>& replaced);
  /// Whether this process decides; returns whether it did.
  bool set_decides(bool decides) { return std::exchange(decides_, decides); }

  /// Puts right what a commit left that was cut short: the new folder is put into its place if it is whole, or else the old one
  /// back. Nothing happens where nothing was left. CheckpointError when it cannot be done.
  static void recover(const std::filesystem::path& target, const std::filesystem::path& aside);
  /// Whether there is something to recover.
  static bool is_interrupted(const std::filesystem::path& aside);

 private:
  struct Joined {};
  StagedFolder(Joined, std::filesystem::path target, std::filesystem::path aside, std::filesystem::path lock);
  void open_folder();
  /// Whether it is there.
  bool check_target() const;
  void replace_target();
  /// Whether the folder that was made at `aside` has that path now: another run may have put one of its own there.
  bool is_made_folder(const std::filesystem::path& path) const;
  /// The folders above, which the lock lies in.
  static std::filesystem::path with_parents(std::filesystem::path target, const std::filesystem::path& lock);
  /// Removes the folder that unfinished ones are in when this was the only one; what holds anything else is not removed.
  void remove_parent() const;

  std::filesystem::path target_, aside_;
  SaveLock lock_;
  std::shared_ptr<void> claim_;
  int made_ = -1;  // the folder that was made, open: its number is nobody else's meanwhile
  bool committed_ = false, decides_ = true;
};

/// The name of the folder, beside `name`, that a checkpoint is written to: a name that is as long as may be leaves it no room.
std::string staging_name(const std::string& name);

/// Makes a folder and those above it. CheckpointError when it cannot be made.
void make_folder(const std::filesystem::path& folder);
/// Makes what was renamed, made or removed in `folder` survive a loss of power. CheckpointError when that cannot be had.
void sync_folder_entries(const std::filesystem::path& folder);
/// Where something is mounted in or at `folder`; empty when nothing is.
std::filesystem::path mounted_in(const std::filesystem::path& folder);

}  // namespace accelerate::detail
