#include "checkpoint/staged_folder.h"

#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>

#include "checkpoint/manifest.h"
#include "core/crc32.h"
#include "core/escaped.h"
#include "core/file.h"

namespace accelerate::detail {
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

/// Whether it holds a checkpoint with all files that belong to it. FileAccessError when that cannot be known.
bool is_complete(const fs::path& folder) {
  try {
    const auto manifest = read_manifest(folder);
    return manifest && find_defect(folder, *manifest).empty();
  } catch (const FileAccessError&) {
    throw;
  } catch (const Error&) {
    return false;
  }
}

/// Not every file system knows a file under two names, and not every file of another user may be given a second one.
bool wants_copy(int reason) {
  return reason == EPERM || reason == EOPNOTSUPP || reason == ENOSYS || reason == EXDEV || reason == EMLINK;
}

/// The same file under another name, or where that cannot be had a durable copy.
void keep_file(const fs::path& from, const fs::path& to) {
  if (linkat(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), 0) == 0 || errno == EEXIST) return;
  const int reason = errno;
  std::error_code problem(reason, std::generic_category());
  if (wants_copy(reason)) {
    problem.clear();
    fs::copy(from, to, fs::copy_options::copy_symlinks, problem);
  }
  if (problem) fail_to("keep", from, problem.message());
  if (wants_copy(reason) && fs::is_regular_file(fs::symlink_status(to))) InputFile(to).settle();
}

struct stat status_of(const fs::path& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) fail_to("read", path, std::strerror(errno));
  return status;
}

/// The owner of a folder of somebody else's can only be kept by root.
void keep_owner(const fs::path& from, const fs::path& to) {
  const auto status = status_of(from);
  if (chown(to.c_str(), status.st_uid, status.st_gid) == 0) return;
  if (chown(to.c_str(), static_cast<uid_t>(-1), status.st_gid) == 0 && status_of(to).st_uid == status.st_uid) return;
  get_logger("accelerate")
      .warning({.main_process_only = false},
               "{} belongs to user {}, group {}, but its replacement will not: only root can change the owner of a folder.",
               escaped(from.string()), status.st_uid, status.st_gid);
}

/// After the owner: a change of that takes some of them away.
void keep_permissions(const fs::path& from, const fs::path& to, mode_t beside = 0) {
  if (chmod(to.c_str(), (status_of(from).st_mode & 07777) | beside) != 0)
    fail_to("set the permissions of", to, std::strerror(errno));
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
      make_folder(to);
      keep_file(entry->path(), kept);
      continue;
    }
    if (fs::is_empty(entry->path())) {
      make_folder(kept);
    } else {
      keep_others(entry->path(), kept, below, replaced);
    }
    if (!fs::is_directory(fs::symlink_status(kept))) continue;  // nothing of it is kept
    // Last: a folder may be closed to writing.
    keep_owner(entry->path(), kept);
    keep_permissions(entry->path(), kept);
    sync_folder_entries(kept);
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

/// Keeps a second accelerator of this process, which shares its locks, from a staging folder that is in use.
std::shared_ptr<void> claim(const fs::path& aside) {
  struct Claims {
    std::mutex mutex;
    std::set<fs::path> folders;
  };
  static auto* const claims = new Claims();  // for accelerators that end after it
  const std::lock_guard guard(claims->mutex);
  if (!claims->folders.insert(aside).second)
    throw CheckpointError(fmt::format(
        "Another accelerator of this process is already saving to {}. Wait for its end_training(), or give each its own folder.",
        aside.string()));
  return {nullptr, [aside](void*) {
            const std::lock_guard end(claims->mutex);
            claims->folders.erase(aside);
          }};
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
  if (problem) fail_to("create the folder", folder, problem.message());
}

void sync_folder_entries(const fs::path& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = descriptor >= 0 && fsync(descriptor) == 0;
  const int reason = errno;
  if (descriptor >= 0) close(descriptor);
  if (!synced) fail_to("fsync", folder, std::strerror(reason));
}

bool StagedFolder::is_interrupted(const fs::path& aside) { return is_there(old_of(aside)); }

void StagedFolder::recover(const fs::path& target, const fs::path& aside) {
  const fs::path old = old_of(aside);
  if (!is_there(old)) return;
  std::error_code problem;
  if (!is_there(target)) {
    // Between the two renames. Of a new folder that is not whole nothing was promised.
    fs::rename(is_complete(aside) ? aside : old, target, problem);
    if (problem) fail_to("recover", target, fmt::format("{}. The previous checkpoint is {}", problem.message(), old.string()));
    sync_folder_entries(target.parent_path());
  }
  if (!is_there(old)) return;
  if (!is_complete(target)) {
    throw CheckpointError(
        fmt::format("A save to {0} was interrupted and left the previous checkpoint at {1}; {0} is not a complete checkpoint. "
                    "Keep one of them as {0}, and remove the other.",
                    target.string(), old.string()));
  }
  fs::remove_all(old, problem);
  if (problem) fail_to("remove the remains of an earlier save,", old, problem.message());
}

fs::path StagedFolder::with_parents(fs::path target, const fs::path& lock) {
  make_folder(target.parent_path());
  make_folder(lock.parent_path());
  return target;
}

StagedFolder::StagedFolder(fs::path target, fs::path aside, fs::path lock)
    : target_(with_parents(std::move(target), lock)),
      aside_(std::move(aside)),
      lock_(std::move(lock), target_.string()),
      claim_(claim(aside_)) {
  recover(target_, aside_);
  const bool replaces = check_target();
  std::error_code problem;
  fs::remove_all(aside_, problem);
  if (problem) fail_to("remove the remains of an earlier save,", aside_, problem.message());
  make_folder(aside_);
  if (replaces) {  // from the beginning: what is written there is not for more people than what it replaces
    keep_owner(target_, aside_);
    keep_permissions(target_, aside_, S_IRWXU);
  }
  open_folder();
}

StagedFolder::StagedFolder(Joined, fs::path target, fs::path aside, fs::path lock)
    : target_(std::move(target)),
      aside_(std::move(aside)),
      lock_(std::move(lock), target_.string(), SaveLock::Kind::shared),
      decides_(false) {
  open_folder();
}

std::shared_ptr<StagedFolder> StagedFolder::join(fs::path target, fs::path aside, fs::path lock) {
  return std::shared_ptr<StagedFolder>(new StagedFolder(Joined{}, std::move(target), std::move(aside), std::move(lock)));
}

void StagedFolder::open_folder() {
  made_ = open(aside_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (made_ < 0) fail_to("open", aside_, std::strerror(errno));
}

StagedFolder::~StagedFolder() {
  if (made_ >= 0) close(made_);
  if (committed_ || !decides_ || is_there(old_of(aside_))) return;  // the last: neither could be put into its place
  std::error_code ignored;
  fs::remove_all(aside_, ignored);
  remove_parent();
}

bool StagedFolder::check_target() const {
  std::error_code problem;
  const auto there = fs::status(target_, problem);
  if (fs::is_symlink(fs::symlink_status(target_, problem))) fail_to("write the folder", target_, "a symbolic link has that name");
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

bool StagedFolder::is_made_folder(const fs::path& path) const {
  struct stat made {
  }, there{};
  return fstat(made_, &made) == 0 && stat(path.c_str(), &there) == 0 && made.st_dev == there.st_dev &&
         made.st_ino == there.st_ino;
}

/// At no instant is there no checkpoint under the name of `target_`, but for file systems that cannot swap two folders
/// (RENAME_EXCHANGE).
void StagedFolder::replace_target() {
  if (renameat2(AT_FDCWD, aside_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0) return;
  if (!cannot_exchange(errno)) fail_to("replace", target_, std::strerror(errno));
  const fs::path old = old_of(aside_);
  if (rename(target_.c_str(), old.c_str()) != 0) fail_to("replace", target_, std::strerror(errno));
  if (rename(aside_.c_str(), target_.c_str()) == 0) return;
  const std::string reason = std::strerror(errno);
  // Without locks, somebody who loads it may have recovered it meanwhile.
  if (is_made_folder(target_)) return;
  if (rename(old.c_str(), target_.c_str()) == 0) fail_to("replace", target_, reason);
  fail_to("replace", target_, fmt::format("{}. The previous checkpoint is {} now", reason, old.string()));
}

void StagedFolder::commit(const std::function<bool(const std::string&)>& replaced) {
  if (!is_made_folder(aside_))
    fail_to("commit", target_, fmt::format("another process has removed or replaced {}", aside_.string()));
  const bool replaces = check_target();
  if (replaces) {
    keep_others(target_, aside_, "", replaced);
    keep_permissions(target_, aside_);
  }
  sync_folder_entries(aside_);
  if (replaces) {
    replace_target();
  } else if (rename(aside_.c_str(), target_.c_str()) != 0) {
    fail_to("commit", target_, std::strerror(errno));
  }
  committed_ = true;
  sync_folder_entries(target_.parent_path());
  // The folder that was replaced is at one of the two.
  std::error_code ignored;
  fs::remove_all(aside_, ignored);
  fs::remove_all(old_of(aside_), ignored);
  remove_parent();
}

}  // namespace accelerate::detail
