#pragma once

#include <filesystem>
#include <string>

namespace accelerate::detail {

/// Keeps other runs from writing to a folder, by a lock on a file beside it. The kernel releases it when this process ends,
/// however it ends, and no child of a fork shares it. One process of a run has the lock, and others may share it: it is free for
/// another run when all of them are gone. The file names its holder; the last one removes it.
/// Several locks of one process on one file are the same lock. A record lock of POSIX, it is also released when this process
/// opens and closes that file in any other way.
class SaveLock {
 public:
  enum class Kind { taken, shared };
  /// CheckpointError names the process and the host that have it, and `folder`, which is what they write to. Where a file system
  /// has no locks nothing is locked, and a warning says so, once. `shared` is for peers of the process that has taken it.
  SaveLock(std::filesystem::path file, const std::string& folder, Kind kind = Kind::taken);
  ~SaveLock();
  SaveLock(const SaveLock&) = delete;
  SaveLock& operator=(const SaveLock&) = delete;

  /// Whether this process did not hold it before.
  bool is_first() const { return is_first_; }

  /// Whether another process holds the lock.
  static bool is_held(const std::filesystem::path& file);

 private:
  std::filesystem::path file_;
  bool is_first_ = false;
};

}  // namespace accelerate::detail
