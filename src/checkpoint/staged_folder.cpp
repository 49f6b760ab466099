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

/// Not every file system knows a file under two names, and not every file of another user may be given a second one.
bool wants_copy(int reason) { return reason == EPERM || reason == EOPNOTSUPP || reason == EXDEV || reason == EMLINK; }

/// The same file under another name, or where that cannot be had a copy.
void keep_file(const fs::path& from, const fs::path& to) {
  if (linkat(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), 0) == 0 || errno == EEXIST) return;
  const int reason = errno;
  std::error_code problem(reason, std::generic_category());
  if (wants_copy(reason)) {
    problem.clear();
    fs::copy(from, to, fs::copy_options::copy_symlinks, problem);
  }
  if (problem) fail_to("keep", from, problem.message());
}

/// Puts into `to` what only `from` has, without taking it away there.
void keep_others(const fs::path& from, const fs::path& to, const std::function<bool(const std::string&)>& replaced) {
  std::error_code problem;
  for (fs::directory_iterator entry(from, problem), end; !problem && entry != end; entry.increment(problem)) {
    if (replaced(entry->path().filename().string())) continue;
    const fs::path kept = to / entry->path().filename();
    if (entry->is_directory() && !entry->is_symlink()) {
      make_folder(kept);
      keep_others(entry->path(), kept, [](const std::string&) { return false; });
    } else {
      keep_file(entry->path(), kept);
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
  check_target();
  fs::remove_all(aside_, problem);
  if (problem) fail_to("remove what is left of an earlier save,", aside_, problem.message());
  if (target_.has_parent_path()) make_folder(target_.parent_path());
  make_folder(aside_);
}

StagedFolder::~StagedFolder() {
  if (committed_) return;
  std::error_code ignored;
  fs::remove_all(aside_, ignored);
  remove_parent();
}

bool StagedFolder::check_target() const {
  std::error_code problem;
  const auto there = fs::status(target_, problem);
  if (!fs::exists(there)) return false;
  if (!fs::is_directory(there)) fail_to("write the folder", target_, "a file has that name");
  return true;
}

void StagedFolder::remove_parent() const {
  std::error_code ignored;
  if (aside_.parent_path() != target_.parent_path()) fs::remove(aside_.parent_path(), ignored);
}

void StagedFolder::commit(const std::function<bool(const std::string&)>& replaced) {
  const bool replaces = check_target();
  if (replaces) keep_others(target_, aside_, replaced);
  sync_folder_entries(aside_);
  if (!replaces) {
    if (rename(aside_.c_str(), target_.c_str()) != 0) fail_to("put in its place", target_, std::strerror(errno));
  } else {
    exchange(aside_, target_);
  }
  committed_ = true;
  sync_folder_entries(target_.has_parent_path() ? target_.parent_path() : fs::path("."));
  std::error_code ignored;
  if (replaces) fs::remove_all(aside_, ignored);
  remove_parent();
}

}  // namespace accelerate
