// What a save or a load asks of the system, one by one, in place of the functions of the C library.
#include "faulty_system.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>

namespace {

/// Changes of the file system that are left until the victims are killed; below 0: they are not.
std::atomic<int> changes_left = -1;
std::vector<int> victims;
std::atomic<bool> victims_killed = false;

/// The condition of hold_threads_until, and whether it has held.
std::function<bool()> threads_may_write;
std::atomic<bool> threads_write = false;

void count_change() {
  while (threads_may_write && !threads_write && ::gettid() != ::getpid()) {
    if (threads_may_write()) threads_write = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (changes_left >= 0 && changes_left-- == 0) faulty_system::kill_victims();
}

struct Refusal {
  /// Calls of this process until it comes; below 0: none does.
  std::atomic<int> calls_left = -1;
  std::atomic<int> reason = EIO;
  std::atomic<bool> lasts = false;
  std::atomic<bool> came = false;

  bool comes() {
    if (calls_left < 0) return false;
    if (calls_left > 0 && calls_left-- > 0) return false;
    if (!lasts) calls_left = -1;
    came = true;
    errno = reason;
    return true;
  }
} refusal;

std::atomic<bool> no_exchange = std::getenv("ACCELERATE_TEST_NO_EXCHANGE") != nullptr;
std::atomic<bool> no_links = false, no_locks = std::getenv("ACCELERATE_TEST_NO_LOCKS") != nullptr;
/// This many threads can still be made; below 0: any number.
std::atomic<int> threads_left = -1;
std::atomic<int> sync_count = 0;
std::atomic<bool> reports_hidden = false;
std::string removed_with_manifest;

}  // namespace

extern "C" {
int fsync(int file) {
  count_change();
  ++sync_count;
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_fsync, file));
}
int rename(const char* from, const char* to) noexcept {
  if (!removed_with_manifest.empty() && std::string_view(to).ends_with("accelerate_manifest.json"))
    ::syscall(SYS_unlinkat, AT_FDCWD, removed_with_manifest.c_str(), 0);
  count_change();
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) noexcept {
  if (no_exchange && flags == RENAME_EXCHANGE) {
    errno = EINVAL;
    return -1;
  }
  count_change();
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_renameat2, from_at, from, to_at, to, flags));
}
int linkat(int from_at, const char* from, int to_at, const char* to, int flags) noexcept {
  if (no_links) {
    errno = EOPNOTSUPP;
    return -1;
  }
  count_change();
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_linkat, from_at, from, to_at, to, flags));
}
int mkdir(const char* name, mode_t mode) noexcept {
  count_change();
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, name, mode));
}
int unlinkat(int at, const char* name, int flags) noexcept {
  count_change();
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_unlinkat, at, name, flags));
}
int open(const char* name, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_openat, AT_FDCWD, name, flags, mode));
}
int openat(int at, const char* name, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_openat, at, name, flags, mode));
}
int fcntl(int file, int command, ...) {
  va_list more;
  va_start(more, command);
  void* const argument = va_arg(more, void*);
  va_end(more);
  if (no_locks && (command == F_SETLK || command == F_GETLK)) {
    errno = ENOLCK;
    return -1;
  }
  return command == F_SETLK && refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_fcntl, file, command, argument));
}
int chmod(const char* name, mode_t mode) noexcept {
  count_change();
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_fchmodat, AT_FDCWD, name, mode));
}
int remove(const char* name) noexcept {
  count_change();
  if (refusal.comes()) return -1;
  const auto result = ::syscall(SYS_unlinkat, AT_FDCWD, name, 0);
  return static_cast<int>(result != 0 && errno == EISDIR ? ::syscall(SYS_unlinkat, AT_FDCWD, name, AT_REMOVEDIR) : result);
}
int stat(const char* name, struct stat* status) noexcept {
  if (reports_hidden && std::string_view(name).find("/report_") != std::string_view::npos) {
    errno = ENOENT;
    return -1;
  }
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, name, status, 0));
}
int lstat(const char* name, struct stat* status) noexcept {
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, name, status, AT_SYMLINK_NOFOLLOW));
}
ssize_t pread(int file, void* bytes, size_t size, off_t offset) {
  return refusal.comes() ? -1 : ::syscall(SYS_pread64, file, bytes, size, offset);
}
ssize_t write(int file, const void* bytes, size_t size) {
  return file > 2 && refusal.comes() ? -1 : ::syscall(SYS_write, file, bytes, size);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) noexcept {
  if (threads_left >= 0 && threads_left-- <= 0) {
    threads_left = 0;
    return EAGAIN;
  }
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, body, argument);
}
}

namespace faulty_system {

void set_victims(std::vector<int> processes) { victims = std::move(processes); }

void kill_victims() {
  victims_killed = true;
  for (const int process : victims) ::kill(process, SIGKILL);
  if (std::find(victims.begin(), victims.end(), ::getpid()) == victims.end()) return;
  for (;;) ::pause();
}

void kill_victims_after(int changes) { changes_left = changes; }

bool has_killed_victims() { return victims_killed; }

void die_after(int changes) {
  set_victims({::getpid()});
  kill_victims_after(changes);
}

void hold_threads_until(std::function<bool()> may_write) { threads_may_write = std::move(may_write); }

void refuse_after(int calls, int reason, bool lasting) {
  refusal.came = false;
  refusal.reason = reason;
  refusal.lasts = lasting;
  refusal.calls_left = calls;
}

bool end_refusal() {
  refusal.calls_left = -1;
  return refusal.came;
}

void limit_threads(int count) { threads_left = count; }

void set_lacks(const Lacks& lacks) {
  no_exchange = lacks.exchange;
  no_links = lacks.links;
  no_locks = lacks.locks;
}

void hide_reports() { reports_hidden = true; }

void remove_with_manifest(const std::string& file) { removed_with_manifest = file; }

int synced_files() { return sync_count; }

}  // namespace faulty_system
