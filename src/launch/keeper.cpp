#include "launch/keeper.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include <accelerate/core/error.h>

namespace accelerate {
namespace {

struct KeeperMessage {
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

// Runs in a copy of a program that may have threads: only async-signal-safe calls, and nothing is allocated.
[[noreturn]] void keep(int socket, pid_t* groups, int count) {
  ::setsid();  // what is sent to the launcher's group or comes from its terminal is not for us
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::prctl(PR_SET_NAME, "accelerate-keep");
  ::dup2(socket, 0);
  close_descriptors_from(1);
  for (KeeperMessage message = {};;) {
    const ssize_t got = ::recv(0, &message, sizeof message, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof message) break;  // the launcher's end is closed: it is dead
    if (message.slot >= 0 && message.slot < count) groups[message.slot] = message.group;
  }
  for (int slot = 0; slot < count; ++slot) {
    if (groups[slot] > 0) ::kill(-groups[slot], SIGKILL);
  }
  ::_exit(0);
}

}  // namespace

Keeper::Keeper(int count) {
  std::vector<pid_t> groups(static_cast<size_t>(count));
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0) pid_ = ::fork();
  if (pid_ == 0) {
    ::close(ends[0]);
    keep(ends[1], groups.data(), count);
  }
  const int problem = errno;
  if (ends[1] >= 0) ::close(ends[1]);
  socket_ = ends[0];
  if (pid_ > 0) return;
  let_go();
  throw WorkerError(fmt::format("No worker can be started: {}.", ::strerrordesc_np(problem)));
}

void Keeper::dismiss() {
  ::kill(pid_, SIGKILL);  // rather than asked: somebody may have stopped it
  let_go();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
}

void Keeper::let_go() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void Keeper::tell(int slot, pid_t group) const {
  const KeeperMessage message = {.slot = slot, .group = group};
  // Somebody may have ended or stopped the keeper; that is no reason to end or to wait.
  ::send(socket_, &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace accelerate
