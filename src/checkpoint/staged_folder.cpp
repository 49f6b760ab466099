#include "checkpoint/staged_folder.h"

#include <accelerate/core/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace accelerate {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_to(const char* doing, const fs::path& path, const std::string& reason) {
  throw CheckpointError(fmt::format("Cannot {} {}: {}.", doing, path.string(), reason));
}

/// Puts into `to` what only `from` has, without taking it away there. Files are the same file under two names.
void keep_others(const fs::path& from, const fs::path& to, const std::function<bool(const std::string&)>& replaced) {
  std::error_code problem;
  for (fs::directory_iterator entry(from, problem), end; !problem && entry != end; entry.increment(problem)) {
    if (replaced(entry->path().filename().string())) continue;
    const fs::path kept = to / entry->path().filename();
    if (entry->is_directory() && !entry->is_symlink()) {
      make_folder(kept);
      keep_others(entry->path(), kept, [](const std::string&) { return false; });
    } else if (linkat(AT_FDCWD, entry->path().c_str(), AT_FDCWD, kept.c_str(), 0) != 0 && errno != EEXIST) {
      fail_to("keep", entry->path(), std::strerror(errno));
    }
  }
  if (problem) fail_to("read", from, problem.message());
}

/// At no instant is there no checkpoint under the name of `target`, but for file systems that cannot exchange two folders.
void exchange(const fs::path& aside, const fs::path& target) {
  if (renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail_to("put in its place", target, std::strerror(errno));
  const fs::path old = aside.string() + ".old";
  std::error_code problem;
  fs::rename(target, old, problem);
  if (!problem) fs::rename(aside, target, problem);
  if (!problem) fs::rename(old, aside, problem);
  if (problem) fail_to("put in its place", target, problem.message());
}

}  // namespace

void make_folder(const fs::path& folder) {
  std::error_code problem;
  fs::create_directories(folder, problem);
  if (problem) fail_to("make the folder", folder, problem.message());
}

void sync_folder_entries(const fs::path& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = descriptor >= 0 && fsync(descriptor) == 0;
  const int reason = errno;
  if (descriptor >= 0) close(descriptor);
  if (!synced) fail_to("make durable", folder, std::strerror(reason));
}

StagedFolder::StagedFolder(fs::path target, fs::path aside) : target_(std::move(target)), aside_(std::move(aside)) {
  std::error_code problem;
  fs::remove_all(aside_, problem);
  if (problem) fail_to("remove what is left of an earlier save,", aside_, problem.message());
  if (target_.has_parent_path()) make_folder(target_.parent_path());
  make_folder(aside_);
}

StagedFolder::~StagedFolder() {
  if (committed_) return;
  std::error_code ignored;
  fs::remove_all(aside_, ignored);
}

void StagedFolder::commit(const std::function<bool(const std::string&)>& replaced) {
  std::error_code problem;
  const bool replaces = fs::exists(fs::symlink_status(target_, problem));
  if (replaces && !fs::is_directory(target_, problem)) fail_to("write the folder", target_, "a file has that name");
  if (replaces) keep_others(target_, aside_, replaced);
  sync_folder_entries(aside_);
  if (!replaces) {
    if (rename(aside_.c_str(), target_.c_str()) != 0) fail_to("put in its place", target_, std::strerror(errno));
  } else {
    exchange(aside_, target_);
  }
  committed_ = true;
  sync_folder_entries(target_.has_parent_path() ? target_.parent_path() : fs::path("."));
  if (replaces) fs::remove_all(aside_, problem);
  // The folder that unfinished ones are in, when this was the only one there; one that holds anything else is not removed.
  if (aside_.parent_path() != target_.parent_path()) fs::remove(aside_.parent_path(), problem);
}

}  // namespace accelerate
