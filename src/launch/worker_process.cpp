#include "launch/worker_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include <accelerate/core/error.h>
#include "core/escaped.h"
#include "launch/signal_scope.h"

namespace accelerate::detail {
namespace {

std::vector<std::string> environment_of(const WorkerPlan& plan, const std::vector<std::string>& removed) {
  std::vector<std::string> lines;
  for (char** line = environ; *line != nullptr; ++line) {
    const std::string_view text = *line;
    const std::string name(text.substr(0, text.find('=')));
    const bool dropped = std::find(removed.begin(), removed.end(), name) != removed.end();
    if (!dropped && !plan.variables.contains(name)) lines.emplace_back(text);
  }
  for (const auto& [name, value] : plan.variables) lines.push_back(name + "=" + value);
  return lines;
}

std::vector<char*> as_c_array(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (auto& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

void reset_signals() {
  for (int signal = 1; signal < NSIG; ++signal) {
    if (!is_left_ignored(signal)) ::signal(signal, SIG_DFL);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

void begin_worker(const WorkerStart& start, pid_t launcher) {
  const auto& [input, streams, watchdog, slot] = start;
  ::setpgid(0, 0);
  // A launcher that gets SIGKILL cannot stop its workers, so the kernel does.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(EXIT_FAILURE);  // it died before the line above
  watchdog.hold(slot, ::getpid());
  // Done here as well as in the launcher, because the program might read before the launcher gets to it.
  if (input == WorkerInput::terminal) ::tcsetpgrp(STDIN_FILENO, ::getpid());
  if (input == WorkerInput::empty) {
    const int nothing = ::open("/dev/null", O_RDONLY);
    if (nothing > STDIN_FILENO) {
      ::dup2(nothing, STDIN_FILENO);
      ::close(nothing);
    }
  }
  if (streams.out >= 0) ::dup2(streams.out, STDOUT_FILENO);
  if (streams.err >= 0) ::dup2(streams.err, STDERR_FILENO);
}

/// Room for a set of CPUs of any size, made before the fork.
class CpuSet {
 public:
  explicit CpuSet(const std::vector<int>& cpus) : bits_(words_for(cpus)) {
    for (const int cpu : cpus) bits_[static_cast<size_t>(cpu) / kBits] |= 1UL << (static_cast<size_t>(cpu) % kBits);
  }

  /// Pins this process to them. CPUs that went offline meanwhile are not an error.
  void apply() const {
    if (!bits_.empty())
      ::sched_setaffinity(0, bits_.size() * sizeof(unsigned long), reinterpret_cast<const cpu_set_t*>(bits_.data()));
  }

 private:
  static constexpr size_t kBits = 8 * sizeof(unsigned long);
  static size_t words_for(const std::vector<int>& cpus) {
    return cpus.empty() ? 0 : static_cast<size_t>(*std::max_element(cpus.begin(), cpus.end())) / kBits + 1;
  }
  std::vector<unsigned long> bits_;
};

// Only async-signal-safe calls are allowed after fork: everything was allocated before.
[[noreturn]] void become_program(const char* path, const char* shown_path, char* const* argv, char* const* environment) {
  reset_signals();
  // The path has a slash, so PATH is not searched again; like a shell, execvp runs a script without #! with sh.
  ::execvpe(path, argv, environment);
  ::dprintf(STDERR_FILENO, "accelerate launch: '%s' cannot be executed: %s.\n", shown_path, ::strerrordesc_np(errno));
  ::_exit(126);
}

}  // namespace

pid_t fork_worker(int rank, const WorkerStart& start, const std::function<void()>& become) {
  const pid_t launcher = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw WorkerError(fmt::format("Rank {} could not be started: {}.", rank, ::strerrordesc_np(errno)));
  if (pid == 0) {
    begin_worker(start, launcher);
    become();
    ::_exit(EXIT_FAILURE);
  }
  // Both sides do it: whichever runs first, the group exists before it is signalled.
  ::setpgid(pid, pid);
  return pid;
}

pid_t start_program(const WorkerPlan& plan, const std::string& path, const std::vector<std::string>& removed,
                    const WorkerStart& start) {
  std::vector<std::string> arguments = plan.argv;
  std::vector<std::string> variables = environment_of(plan, removed);
  const std::vector<char*> argv = as_c_array(arguments);
  const std::vector<char*> environment = as_c_array(variables);
  const CpuSet cpus(plan.cpus);
  const std::string shown_path = escaped(path);
  return fork_worker(plan.rank, start, [&] {
    cpus.apply();
    become_program(path.c_str(), shown_path.c_str(), argv.data(), environment.data());
  });
}

std::chrono::duration<double> WorkerProcess::running_time() const {
  return (status_ ? ended_ : std::chrono::steady_clock::now()) - started_;
}

bool WorkerProcess::poll() {
  bool stopped = false;
  int status = 0;
  while (!status_ && ::waitpid(pid_, &status, WNOHANG | WUNTRACED) == pid_) {
    stopped = WIFSTOPPED(status);
    if (!stopped) note_end(status);
  }
  if (gone_) return false;
  // Orphans of the group have become our children (see SignalScope): zombies are reaped here, and ECHILD means that the group
  // is empty. From then on its id may be reused by an unrelated process, and is not signalled any more.
  pid_t reaped = 0;
  while ((reaped = ::waitpid(-pid_, &status, WNOHANG)) > 0) {
    if (reaped == pid_) note_end(status);
  }
  // A process of another user (sudo) cannot be killed, and is not waited for.
  gone_ = status_ && (reaped < 0 || (::kill(-pid_, 0) != 0 && errno == EPERM));
  return stopped && !status_;
}

void WorkerProcess::note_end(int status) {
  status_ = status;
  ended_ = std::chrono::steady_clock::now();
}

void WorkerProcess::send(int signal) {
  if (!gone_) ::kill(-pid_, signal);
}

}  // namespace accelerate::detail
