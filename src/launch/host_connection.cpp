#include "launch/host_connection.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "hosts/stdin_signals.h"

namespace accelerate::detail {
namespace {

constexpr std::array kForwarded = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

int exit_code_after(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

/// The process between the launcher and the command. It was just forked, and has one thread.
class ConnectionParent {
 public:
  ConnectionParent() {
    ::sigemptyset(&taken_);
    ::sigaddset(&taken_, SIGCHLD);
    for (const int signal : kForwarded) ::sigaddset(&taken_, signal);
    ::sigprocmask(SIG_BLOCK, &taken_, nullptr);
    ::signal(SIGCHLD, SIG_DFL);
    ::signal(SIGPIPE, SIG_IGN);
    if (::pipe2(pipe_.data(), O_CLOEXEC) != 0) ::_exit(EXIT_FAILURE);
  }

  /// The command, with the pipe as its stdin; `become` must not return.
  void start(const std::function<void()>& become) {
    const pid_t parent = ::getpid();
    command_ = ::fork();
    if (command_ < 0) ::_exit(EXIT_FAILURE);
    if (command_ > 0) {
      ::close(pipe_[0]);
      return;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(EXIT_FAILURE);  // it died before the line above
    ::dup2(pipe_[0], STDIN_FILENO);
    become();
    ::_exit(EXIT_FAILURE);
  }

  [[noreturn]] void forward_signals() const {
    for (;;) {
      siginfo_t info = {};
      if (::sigwaitinfo(&taken_, &info) < 0) continue;
      if (info.si_signo == SIGCHLD) {
        int status = 0;
        if (::waitpid(command_, &status, WNOHANG) == command_) ::_exit(exit_code_after(status));
        continue;
      }
      const std::string line = signal_line(info.si_signo);
      [[maybe_unused]] const ssize_t written = ::write(pipe_[1], line.data(), line.size());  // fails when the command is gone
    }
  }

 private:
  sigset_t taken_ = {};
  std::array<int, 2> pipe_ = {-1, -1};
  pid_t command_ = -1;
};

}  // namespace

pid_t start_host_connection(const WorkerPlan& plan, const std::string& path, const std::vector<std::string>& removed,
                            const WorkerStart& start, const std::function<void()>& release) {
  const ProgramImage command(plan, path, removed);
  return fork_worker(plan.rank, start, [&] {
    release();
    ConnectionParent parent;
    parent.start([&] { command.become(kForwarded); });
    parent.forward_signals();
  });
}

}  // namespace accelerate::detail
