#include "launch/watchdog.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include <accelerate/core/error.h>

namespace accelerate::detail {
namespace {

struct WatchdogMessage {
  int slot;
  pid_t group;  // 0: none any more
};

void close_descriptors_from(unsigned first) {
  if (::close_range(first, ~0u, 0) == 0) return;
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto end = static_cast<unsigned>(std::min<rlim_t>(limit.rlim_cur, 1 << 20));
  for (unsigned descriptor = first; descriptor < end; ++descriptor) ::close(static_cast<int>(descriptor));
}

// All from here to `keep` runs in a fork of a program that may have threads: only async-signal-safe calls, no allocation. So
// /proc is listed with the raw system call.

bool environment_has(const char* pid, std::string_view mark) {
  std::array<char, 64> path = {};
  std::strcat(std::strcat(std::strcpy(path.data(), "/proc/"), pid), "/environ");
  const int file = ::open(path.data(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;  // gone, or of another user
  std::array<char, 8192> text;
  size_t kept = 0;
  bool found = false;
  for (ssize_t got = 0; !found && (got = ::read(file, text.data() + kept, text.size() - kept)) > 0;) {
    const std::string_view seen(text.data(), kept + static_cast<size_t>(got));
    found = seen.find(mark) != std::string_view::npos;
    kept = std::min(mark.size() - 1, seen.size());  // the mark may straddle two chunks
    std::memmove(text.data(), seen.data() + seen.size() - kept, kept);
  }
  ::close(file);
  return found;
}

// Kills the process if its environment has `mark`. A pidfd is opened first, so that an unrelated process that reuses the pid is
// not killed. Returns whether there was a process to kill.
bool kill_marked(const char* pid, std::string_view mark) {
  const int process = static_cast<int>(::syscall(SYS_pidfd_open, std::atoi(pid), 0));
  const bool no_such_call = process < 0 && errno == ENOSYS;
  bool killed = false;
  if ((process >= 0 || no_such_call) && environment_has(pid, mark)) {
    killed =
        (no_such_call ? ::kill(std::atoi(pid), SIGKILL) : ::syscall(SYS_pidfd_send_signal, process, SIGKILL, nullptr, 0)) == 0;
  }
  if (process >= 0) ::close(process);
  return killed;
}

// Scans every process once. Zombies have no environment any more. Returns whether any process was killed.
bool kill_all_marked(std::string_view mark) {
  struct Entry {  // as the kernel writes it
    uint64_t number;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[1];
  };
  const int folder = ::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  alignas(Entry) std::array<char, 8192> entries;
  bool killed = false;
  for (long got = 0; (got = ::syscall(SYS_getdents64, folder, entries.data(), entries.size())) > 0;) {
    for (long at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const Entry*>(entries.data() + at);
      if (entry->name[0] >= '1' && entry->name[0] <= '9') killed = kill_marked(entry->name, mark) || killed;
      at += entry->length;
    }
  }
  ::close(folder);
  return killed;
}

// A process forked during a scan is found by the next one, when its parent is dead; a process in the middle of exec has no
// environment, so one scan without a match is not enough. The number of scans is bounded: a process in an uninterruptible
// sleep does not die.
void end_marked(std::string_view mark) {
  constexpr int kLooks = 500, kQuietLooks = 3;
  const timespec pause = {.tv_sec = 0, .tv_nsec = 10'000'000};
  for (int look = 0, quiet = 0; look < kLooks && quiet < kQuietLooks; ++look) {
    quiet = kill_all_marked(mark) ? 0 : quiet + 1;
    ::nanosleep(&pause, nullptr);
  }
}

[[noreturn]] void keep(int socket, pid_t* groups, int count, std::string_view mark) {
  ::setsid();  // ignore signals that are sent to the launcher's group or come from its terminal
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::prctl(PR_SET_NAME, "accelerate-wdog");
  ::dup2(socket, 0);
  close_descriptors_from(1);
  for (WatchdogMessage message = {};;) {
    const ssize_t got = ::recv(0, &message, sizeof message, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof message) break;  // the launcher's end is closed: it is dead
    if (message.slot >= 0 && message.slot < count) groups[message.slot] = message.group;
  }
  for (int slot = 0; slot < count; ++slot) {
    if (groups[slot] > 0) ::kill(-groups[slot], SIGKILL);
  }
  end_marked(mark);
  ::_exit(0);
}

std::string random_mark() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace

Watchdog::Watchdog(int count) : mark_(random_mark()) {
  std::vector<pid_t> groups(static_cast<size_t>(count));
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0) pid_ = ::fork();
  if (pid_ == 0) {
    ::close(ends[0]);
    keep(ends[1], groups.data(), count, mark_);
  }
  const int problem = errno;
  if (ends[1] >= 0) ::close(ends[1]);
  socket_ = ends[0];
  if (pid_ > 0) return;
  release();
  throw WorkerError(fmt::format("Cannot start the watchdog of the launch: {}.", ::strerrordesc_np(problem)));
}

std::string Watchdog::marks() const {
  const char* outer = std::getenv(kLaunchMarkVariable);
  return outer != nullptr && *outer != '\0' ? fmt::format("{}:{}", outer, mark_) : mark_;
}

void Watchdog::dismiss() {
  ::kill(pid_, SIGKILL);  // SIGKILL, because it may have been stopped
  release();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
}

void Watchdog::release() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void Watchdog::tell(int slot, pid_t group) const {
  const WatchdogMessage message = {.slot = slot, .group = group};
  // The watchdog may have been killed or stopped; the launcher neither fails nor blocks because of it.
  ::send(socket_, &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace accelerate::detail
