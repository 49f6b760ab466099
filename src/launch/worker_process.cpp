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

void reset_signals(std::span<const int> ignored) {
  for (int signal = 1; signal < NSIG; ++signal) {
    if (!is_left_ignored(signal)) ::signal(signal, SIG_DFL);
  }
  for (const int signal : ignored) ::signal(signal, SIG_IGN);
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

// A set of CPUs of any size.
std::vector<unsigned long> cpu_bits(const std::vector<int>& cpus) {
  constexpr size_t bits = 8 * sizeof(unsigned long);
  if (cpus.empty()) return {};
  std::vector<unsigned long> words(static_cast<size_t>(*std::max_element(cpus.begin(), cpus.end())) / bits + 1);
  for (const int cpu : cpus) words[static_cast<size_t>(cpu) / bits] |= 1UL << (static_cast<size_t>(cpu) % bits);
  return words;
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

ProgramImage::ProgramImage(const WorkerPlan& plan, const std::string& path, const std::vector<std::string>& removed)
    : path_(path),
      shown_path_(escaped(path)),
      arguments_(plan.argv),
      variables_(environment_of(plan, removed)),
      argv_(as_c_array(arguments_)),
      environment_(as_c_array(variables_)),
      cpus_(cpu_bits(plan.cpus)) {}

// Only async-signal-safe calls are allowed after fork: everything was allocated before.
void ProgramImage::become(std::span<const int> ignored) const {
  // CPUs that went offline meanwhile are not an error.
  if (!cpus_.empty())
    ::sched_setaffinity(0, cpus_.size() * sizeof(unsigned long), reinterpret_cast<const cpu_set_t*>(cpus_.data()));
  reset_signals(ignored);
  // The path has a slash, so PATH is not searched again; like a shell, execvp runs a script without #! with sh.
  ::execvpe(path_.c_str(), argv_.data(), environment_.data());
  ::dprintf(STDERR_FILENO, "accelerate launch: '%s' cannot be executed: %s.\n", shown_path_.c_str(), ::strerrordesc_np(errno));
  ::_exit(126);
}

pid_t start_program(const WorkerPlan& plan, const std::string& path, const std::vector<std::string>& removed,
                    const WorkerStart& start, std::span<const int> ignored) {
  const ProgramImage program(plan, path, removed);
  return fork_worker(plan.rank, start, [&] { program.become(ignored); });
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
