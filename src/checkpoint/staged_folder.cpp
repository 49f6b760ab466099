#include "checkpoint/staged_folder.h"

#include <accelerate/core/error.h>
#include <accelerate/core/logging.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "checkpoint/manifest.h"
#include "core/crc32.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_to(const char* doing, const fs::path& path, const std::string& reason) {
  throw CheckpointError(fmt::format("Cannot {} {}: {}.", doing, path.string(), reason));
}

fs::path old_of(const fs::path& aside) { return aside.string() + ".old"; }

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

/// Whether it holds a checkpoint with all files that belong to it.
bool is_whole(const fs::path& folder) {
  try {
    const auto manifest = read_manifest(folder);
    return manifest && find_defect(folder, *manifest).empty();
  } catch (const Error&) {
    return false;
  }
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

/// Who may do what with a folder. The owner of a folder of somebody else's can only be kept by root.
void keep_access(const fs::path& from, const fs::path& to) {
  struct stat status {};
  if (stat(from.c_str(), &status) != 0) fail_to("read", from, std::strerror(errno));
  if (chown(to.c_str(), status.st_uid, status.st_gid) != 0) {
    struct stat own {};
    if (chown(to.c_str(), static_cast<uid_t>(-1), status.st_gid) != 0 || stat(to.c_str(), &own) != 0 ||
        own.st_uid != status.st_uid)
      get_logger("accelerate")
          .warning({.main_process_only = false},
                   "{} belongs to user {}, group {}. The folder that replaces it will not: only root can give folders away.",
                   from.string(), status.st_uid, status.st_gid);
  }
  // After the owner: a change of that takes some of them away.
  if (chmod(to.c_str(), status.st_mode & 07777) != 0) fail_to("set the permissions of", to, std::strerror(errno));
}

/// Puts into `to` what only `from` has, without taking it away there. `path` leads from the top to `from`.
void keep_others(const fs::path& from, const fs::path& to, const std::string& path,
                 const std::function<bool(const std::string&)>& replaced) {
  std::error_code problem;
  for (fs::directory_iterator entry(from, problem), end; !problem && entry != end; entry.increment(problem)) {
    const std::string name = entry->path().filename().string(), below = path.empty() ? name : path + "/" + name;
    if (replaced(below)) continue;
    const fs::path kept = to / name;
    if (!entry->is_directory() || entry->is_symlink()) {
      if (!is_there(to)) {
        make_folder(to);
        keep_access(from, to);
      }
      keep_file(entry->path(), kept);
    } else if (fs::is_empty(entry->path(), problem)) {
      make_folder(kept);
      keep_access(entry->path(), kept);
    } else {
      keep_others(entry->path(), kept, below, replaced);
    }
  }
  if (problem) fail_to("read", from, problem.message());
}

bool cannot_exchange(int reason) { return reason == EINVAL || reason == ENOSYS || reason == EOPNOTSUPP; }

/// A path in /proc/self/mountinfo has blanks and backslashes as \ooo.
std::string without_octal(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

}  // namespace

fs::path mounted_in(const fs::path& folder) {
  std::ifstream mounts("/proc/self/mountinfo");
  const std::string place = folder.string();
  for (std::string line; std::getline(mounts, line);) {
    size_t begin = 0;
    for (int field = 0; field < 4 && begin != std::string::npos; ++field) begin = line.find(' ', begin + 1);
    if (begin == std::string::npos) continue;
    const auto mounted = without_octal(line.substr(begin + 1, line.find(' ', begin + 1) - begin - 1));
    if (mounted == place || mounted.starts_with(place + "/")) return mounted;
  }
  return {};
}

std::string staging_name(const std::string& name) {
  constexpr size_t kRoom = sizeof("..unfinished.lock") - 1;
  if (name.size() + kRoom <= NAME_MAX) return "." + name + ".unfinished";
  const auto sum = fmt::format("{:08x}", crc32(0, name.data(), name.size()));
  return "." + name.substr(0, NAME_MAX - kRoom - sum.size() - 1) + "~" + sum + ".unfinished";
}

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

bool StagedFolder::is_interrupted(const fs::path& aside) { return is_there(old_of(aside)); }

void StagedFolder::recover(const fs::path& target, const fs::path& aside) {
  const fs::path old = old_of(aside);
  if (!is_there(old)) return;
  std::error_code problem;
  if (!is_there(target)) {
    // Between the two renames. Of a new folder that is not whole nothing was promised.
    fs::rename(is_whole(aside) ? aside : old, target, problem);
    if (problem) fail_to("recover", target, fmt::format("{}. The checkpoint before is {}", problem.message(), old.string()));
    sync_folder_entries(target.parent_path());
  }
  if (!is_there(old)) return;
  if (!is_whole(target)) {
    throw CheckpointError(
        fmt::format("A save to {} was cut short and left the checkpoint before at {}; what is in its place is no whole "
                    "checkpoint. Put one of them there, and remove the other.",
                    target.string(), old.string()));
  }
  fs::remove_all(old, problem);
  if (problem) fail_to("remove what is left of an earlier save,", old, problem.message());
}

fs::path StagedFolder::with_parents(fs::path target, const fs::path& lock) {
  make_folder(target.parent_path());
  make_folder(lock.parent_path());
  return target;
}

StagedFolder::StagedFolder(fs::path target, fs::path aside, fs::path lock)
    : target_(with_parents(std::move(target), lock)), aside_(std::move(aside)), lock_(std::move(lock), target_.string()) {
  recover(target_, aside_);
  check_target();
  std::error_code problem;
  fs::remove_all(aside_, problem);
  if (problem) fail_to("remove what is left of an earlier save,", aside_, problem.message());
  make_folder(aside_);
  struct stat made {};
  if (stat(aside_.c_str(), &made) != 0) fail_to("make the folder", aside_, std::strerror(errno));
  device_ = made.st_dev;
  number_ = made.st_ino;
}

StagedFolder::~StagedFolder() {
  if (committed_ || is_there(old_of(aside_))) return;  // the latter: neither could be put into its place
  std::error_code ignored;
  fs::remove_all(aside_, ignored);
  remove_parent();
}

bool StagedFolder::check_target() const {
  std::error_code problem;
  const auto there = fs::status(target_, problem);
  if (!fs::exists(there)) return false;
  if (!fs::is_directory(there)) fail_to("write the folder", target_, "a file has that name");
  if (const auto mounted = mounted_in(target_); !mounted.empty()) {
    fail_to("replace the folder", target_,
            mounted == target_ ? std::string("something is mounted there. Give a folder below it")
                               : fmt::format("something is mounted at {}. Unmount it, or give another folder", mounted.string()));
  }
  return true;
}

void StagedFolder::remove_parent() const {
  std::error_code ignored;
  if (aside_.parent_path() != target_.parent_path()) fs::remove(aside_.parent_path(), ignored);
}

/// At no instant is there no checkpoint under the name of `target_`, but for file systems that cannot exchange two folders.
void StagedFolder::replace_target() {
  if (renameat2(AT_FDCWD, aside_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0) return;
  if (!cannot_exchange(errno)) fail_to("put in its place", target_, std::strerror(errno));
  const fs::path old = old_of(aside_);
  if (rename(target_.c_str(), old.c_str()) != 0) fail_to("put in its place", target_, std::strerror(errno));
  if (rename(aside_.c_str(), target_.c_str()) == 0) return;
  const std::string reason = std::strerror(errno);
  if (rename(old.c_str(), target_.c_str()) == 0) fail_to("put in its place", target_, reason);
  fail_to("put in its place", target_, fmt::format("{}. The checkpoint before is {} now", reason, old.string()));
}

void StagedFolder::commit(const std::function<bool(const std::string&)>& replaced) {
  struct stat now {};
  if (stat(aside_.c_str(), &now) != 0 || now.st_dev != device_ || now.st_ino != number_)
    fail_to("put in its place", target_, fmt::format("another process has removed or replaced {}", aside_.string()));
  const bool replaces = check_target();
  if (replaces) {
    keep_others(target_, aside_, "", replaced);
    keep_access(target_, aside_);
  }
  sync_folder_entries(aside_);
  if (replaces) {
    replace_target();
  } else if (rename(aside_.c_str(), target_.c_str()) != 0) {
    fail_to("put in its place", target_, std::strerror(errno));
  }
  committed_ = true;
  sync_folder_entries(target_.parent_path());
  // The folder that was replaced is at one of the two.
  std::error_code ignored;
  fs::remove_all(aside_, ignored);
  fs::remove_all(old_of(aside_), ignored);
  remove_parent();
}

}  // namespace accelerate
