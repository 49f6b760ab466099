#include "launch/signal_scope.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <accelerate/core/error.h>

namespace accelerate::detail {
namespace {

constexpr std::array kFromOutside = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGUSR1, SIGUSR2};

}  // namespace

bool is_left_ignored(int signal) {
  struct sigaction current = {};
  return std::find(kFromOutside.begin(), kFromOutside.end(), signal) != kFromOutside.end() &&
         ::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_IGN;
}

SignalScope::SignalScope() {
  ::sigemptyset(&taken_);
  for (int signal : {SIGCHLD, SIGWINCH}) ::sigaddset(&taken_, signal);
  for (int signal : kFromOutside) {
    if (!is_left_ignored(signal))
      ::sigaddset(&taken_, signal);  // a blocked signal would be delivered here even when it is ignored
  }
  descriptor_ = ::signalfd(-1, &taken_, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor_ < 0) throw WorkerError(fmt::format("Cannot watch the workers: {}.", ::strerrordesc_np(errno)));
  sigset_t blocked = taken_;
  ::sigaddset(&blocked, SIGTTOU);  // else taking the terminal back would stop us
  ::sigprocmask(SIG_BLOCK, &blocked, &mask_before_);
  // An ignored SIGCHLD is inherited, and then waitpid would not report children.
  struct sigaction standard = {};
  ::sigaction(SIGCHLD, &standard, &child_before_);
  ::prctl(PR_GET_CHILD_SUBREAPER, &reaper_before_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

SignalScope::~SignalScope() {
  ::prctl(PR_SET_CHILD_SUBREAPER, reaper_before_);
  while (take()) continue;
  release();
}

void SignalScope::release() {
  ::sigaction(SIGCHLD, &child_before_, nullptr);
  ::close(descriptor_);
  descriptor_ = -1;
  ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

std::optional<ArrivedSignal> SignalScope::take() const {
  signalfd_siginfo info = {};
  if (::read(descriptor_, &info, sizeof info) != sizeof info) return std::nullopt;
  return ArrivedSignal{.number = static_cast<int>(info.ssi_signo), .process = static_cast<pid_t>(info.ssi_pid)};
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : fmt::format("signal {}", signal);
}

}  // namespace accelerate::detail
