#include "checkpoint/save_lock.h"

#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "core/escaped.h"

namespace accelerate::detail {
namespace {

namespace fs = std::filesystem;

/// The lock files of this process. The kernel counts no locks: the first descriptor of a file that is closed would release all.
struct Held {
  int descriptor = -1;
  int users = 0;
  pid_t owner = getpid();  // a child of a fork has the descriptor and not the lock
};
std::mutex held_mutex;
std::map<fs::path, Held>& held_locks() {
  static auto* locks = new std::map<fs::path, Held>();  // for accelerators that end after it
  return *locks;
}

void forget_locks_of_parent() {
  std::erase_if(held_locks(), [](const auto& item) {
    if (item.second.owner == getpid()) return false;
    if (item.second.descriptor >= 0) close(item.second.descriptor);
    return true;
  });
}

/// The first byte belongs to the process that has taken the lock, the second to all that share it.
constexpr off_t kTaken = 0, kShared = 1;

struct flock lock_from(off_t begin, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = begin;  // to the end
  return lock;
}

bool set_lock(int descriptor, off_t begin, short type) {
  const auto lock = lock_from(begin, type);
  return fcntl(descriptor, F_SETLK, &lock) == 0;
}

/// When nobody has taken it or shares it. From then on peers may share it.
bool take_lock(int descriptor) { return set_lock(descriptor, kTaken, F_WRLCK) && set_lock(descriptor, kShared, F_UNLCK); }

bool has_no_locks(int reason) { return reason == ENOLCK || reason == ENOSYS || reason == EOPNOTSUPP || reason == EINVAL; }

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "this host";
}

/// What the holder has written about itself.
std::string holder_in(int descriptor) {
  char text[512] = {};
  const ssize_t size = pread(descriptor, text, sizeof(text) - 1, 0);
  const std::string holder(text, size > 0 ? static_cast<size_t>(size) : 0);
  return holder.empty() ? "Another process" : "P" + escaped(holder.substr(0, holder.find('\n'))).substr(1);
}

void name_holder(int descriptor) {
  const auto text = fmt::format("process {} on {}\n", getpid(), host_name());
  // Only for messages: without room the lock is as good.
  if (ftruncate(descriptor, 0) != 0 || pwrite(descriptor, text.data(), text.size(), 0) < 0) return;
}

/// Whether the descriptor is of the file that has that name now: its last holder may have removed it meanwhile.
bool is_current(int descriptor, const fs::path& file) {
  struct stat own {
  }, named{};
  return fstat(descriptor, &own) == 0 && stat(file.c_str(), &named) == 0 && own.st_dev == named.st_dev &&
         own.st_ino == named.st_ino;
}

/// Once in a process, not once in a save.
void warn_of_missing_locks(const std::string& folder, int reason) {
  static const auto* const logger = new Logger(get_logger("accelerate"));
  logger->warning_once("{} is on a file system without file locks ({}): concurrent runs that save there are not detected.",
                       escaped(folder), std::strerror(reason));
}

/// A descriptor that holds the lock, or -1 where there are no locks.
int lock_file(const fs::path& file, const std::string& folder) {
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
  for (;;) {
    int descriptor = open(file.c_str(), kFlags | O_CREAT | O_EXCL, 0666);
    const bool created = descriptor >= 0;
    if (!created && errno == EEXIST) descriptor = open(file.c_str(), kFlags);
    if (descriptor < 0 && errno == ENOENT && fs::exists(file.parent_path())) continue;  // its holder has just removed it
    if (descriptor < 0) throw CheckpointError(fmt::format("Cannot create {}: {}.", file.string(), std::strerror(errno)));
    if (take_lock(descriptor)) {
      if (is_current(descriptor, file)) {
        name_holder(descriptor);
        return descriptor;
      }
      close(descriptor);
      continue;
    }
    const int reason = errno;
    const std::string holder = holder_in(descriptor);
    close(descriptor);
    if (reason == EINTR) continue;
    if (has_no_locks(reason)) {
      if (created) unlink(file.c_str());  // that of another run, which may have found locks, stays
      warn_of_missing_locks(folder, reason);
      return -1;
    }
    throw CheckpointError(
        fmt::format("{} is already saving to {}. Two runs would destroy each other's checkpoints: give each its own folder, or "
                    "stop the other one.",
                    holder, folder));
  }
}

/// The same beside a peer that has taken it; -1 also where that peer found no locks.
int share_lock_file(const fs::path& file, const std::string& folder) {
  const int descriptor = open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (descriptor < 0 && errno == ENOENT) return -1;
  if (descriptor >= 0 && set_lock(descriptor, kShared, F_RDLCK)) return descriptor;
  const int reason = errno;
  if (descriptor >= 0) close(descriptor);
  if (has_no_locks(reason)) return -1;
  throw CheckpointError(fmt::format("Cannot lock {} to save to {}: {}.", file.string(), folder, std::strerror(reason)));
}

/// The last to release it removes the file, while it is locked: nobody else has it.
void unlock_file(int descriptor, const fs::path& file) {
  set_lock(descriptor, kTaken, F_UNLCK);
  if (set_lock(descriptor, kTaken, F_WRLCK) && is_current(descriptor, file)) unlink(file.c_str());
  close(descriptor);
}

}  // namespace

SaveLock::SaveLock(fs::path file, const std::string& folder, Kind kind) : file_(std::move(file)) {
  const std::lock_guard guard(held_mutex);
  forget_locks_of_parent();
  auto& held = held_locks()[file_];
  is_first_ = held.users == 0;
  if (is_first_) {
    try {
      held.descriptor = kind == Kind::taken ? lock_file(file_, folder) : share_lock_file(file_, folder);
    } catch (...) {
      held_locks().erase(file_);
      throw;
    }
  }
  ++held.users;
}

SaveLock::~SaveLock() {
  const std::lock_guard guard(held_mutex);
  forget_locks_of_parent();
  const auto held = held_locks().find(file_);
  if (held == held_locks().end() || --held->second.users > 0) return;
  if (held->second.descriptor >= 0) unlock_file(held->second.descriptor, file_);
  held_locks().erase(held);
}

bool SaveLock::is_held(const fs::path& file) {
  // To the end: closing this descriptor releases a lock that another thread takes meanwhile.
  const std::lock_guard guard(held_mutex);
  forget_locks_of_parent();
  if (held_locks().contains(file)) return false;  // by this process; closing another descriptor would release it
  const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) return false;
  auto lock = lock_from(kTaken, F_WRLCK);  // to write: who shares it has it, too
  const bool asked = fcntl(descriptor, F_GETLK, &lock) == 0;
  close(descriptor);
  return asked && lock.l_type != F_UNLCK;
}

}  // namespace accelerate::detail
