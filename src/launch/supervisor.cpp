#include <accelerate/launch/supervisor.h>

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <accelerate/core/error.h>
#include "launch/program_path.h"
#include "launch/terminal_loan.h"
#include "launch/worker_process.h"

namespace accelerate {
namespace {

using Clock = std::chrono::steady_clock;

void say(const std::string& line) { std::fputs(("accelerate launch: " + line + "\n").c_str(), stderr); }

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : fmt::format("signal {}", signal);
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

std::string describe(int status) {
  if (WIFSIGNALED(status)) return "was ended by " + signal_name(WTERMSIG(status));
  return fmt::format("failed with exit code {}", WEXITSTATUS(status));
}

// While it lives, the signals of a launch wait to be taken instead of acting, and orphans of workers become our children.
class SignalScope {
 public:
  SignalScope() {
    ::sigemptyset(&taken_);
    for (int signal : {SIGCHLD, SIGINT, SIGTERM, SIGQUIT, SIGTSTP}) ::sigaddset(&taken_, signal);
    struct sigaction hangup = {};
    ::sigaction(SIGHUP, nullptr, &hangup);
    // nohup ignores SIGHUP for us, and a blocked signal would be taken nevertheless.
    if (hangup.sa_handler != SIG_IGN) ::sigaddset(&taken_, SIGHUP);
    sigset_t blocked = taken_;
    ::sigaddset(&blocked, SIGTTOU);  // or taking the terminal back would stop us
    ::sigprocmask(SIG_BLOCK, &blocked, &mask_before_);
    // A parent that ignores SIGCHLD hands that down, and then no child's end could be waited for.
    struct sigaction standard = {};
    ::sigaction(SIGCHLD, &standard, &child_before_);
    ::prctl(PR_GET_CHILD_SUBREAPER, &reaper_before_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~SignalScope() {
    ::prctl(PR_SET_CHILD_SUBREAPER, reaper_before_);
    ::sigaction(SIGCHLD, &child_before_, nullptr);
    // What arrived too late to be passed on was answered by the exit code already, or came from workers that we ended.
    const timespec now = {};
    while (::sigtimedwait(&taken_, nullptr, &now) > 0) continue;
    ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
  }
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

  // The next signal, or one with si_signo 0 when `deadline` passes first.
  siginfo_t next(std::optional<Clock::time_point> deadline) const {
    for (;;) {
      siginfo_t info = {};
      if (!deadline) {
        if (::sigwaitinfo(&taken_, &info) > 0) return info;
        continue;
      }
      const auto left = std::max(Clock::duration::zero(), *deadline - Clock::now());
      const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
      const timespec timeout = {.tv_sec = nanoseconds / 1'000'000'000, .tv_nsec = nanoseconds % 1'000'000'000};
      if (::sigtimedwait(&taken_, &info, &timeout) > 0) return info;
      if (errno == EAGAIN) return {};
    }
  }

 private:
  sigset_t taken_ = {};
  sigset_t mask_before_ = {};
  struct sigaction child_before_ = {};
  int reaper_before_ = 0;
};

class Supervisor {
 public:
  Supervisor(const LaunchPlan& plan, std::string path) : plan_(plan), path_(std::move(path)) {}

  int run() {
    start();
    while (!finished()) {
      const siginfo_t info = signals_.next(deadline_);
      if (info.si_signo == 0) {
        kill_all();
      } else if (info.si_signo == SIGCHLD) {
        look_at_workers(info.si_pid);
      } else if (info.si_signo == SIGTSTP) {
        suspend();
      } else {
        pass_on(info.si_signo);
      }
    }
    return exit_code_;
  }

 private:
  void start() {
    workers_.reserve(plan_.workers.size());
    try {
      for (const auto& worker : plan_.workers) {
        workers_.emplace_back(worker, path_, plan_.removed_variables, input_of(worker.rank));
      }
    } catch (const WorkerError& error) {
      say(error.what());
      stop(SIGTERM, EXIT_FAILURE);
    }
    lend_terminal();
  }

  void lend_terminal() {
    if (lends_terminal_ && !workers_.empty()) terminal_.lend_to(workers_.front().pid());
  }

  // Readers of one stdin would each get a part of it, so rank 0 alone has it. A terminal serves the one group in its
  // foreground: a lone worker is put there, but with several, Ctrl-C has to come to us, and reading would stop rank 0.
  WorkerInput input_of(int rank) {
    if (rank != 0) return WorkerInput::empty;
    if (::isatty(STDIN_FILENO) == 0) return WorkerInput::inherited;
    lends_terminal_ = plan_.workers.size() == 1 && TerminalLoan::possible();
    return lends_terminal_ ? WorkerInput::terminal : WorkerInput::empty;
  }

  bool finished() const {
    return std::all_of(workers_.begin(), workers_.end(), [this](const WorkerProcess& worker) {
      return stopping_ ? worker.group_is_gone() : worker.status().has_value();
    });
  }

  // Ends of several workers may be announced by one SIGCHLD; the process it names is the one that ended first.
  void look_at_workers(pid_t first) {
    auto named = std::find_if(workers_.begin(), workers_.end(), [first](auto& worker) { return worker.pid() == first; });
    if (named != workers_.end()) look_at(*named);
    for (auto& worker : workers_) look_at(worker);
  }

  void look_at(WorkerProcess& worker) {
    const bool ended_before = worker.status().has_value();
    const bool stopped = worker.poll();
    if (stopped && lends_terminal_) suspend();
    if (ended_before || !worker.status() || exit_code_of(*worker.status()) == 0 || stopping_) return;
    const auto others = workers_.size() - 1;
    say(fmt::format("rank {} {} after {:.1f} s{}", worker.rank(), describe(*worker.status()), worker.running_time().count(),
                    others == 0   ? "."
                    : others == 1 ? "; the other rank is stopped."
                                  : "; the other ranks are stopped."));
    stop(SIGTERM, exit_code_of(*worker.status()));
  }

  void pass_on(int signal) {
    if (signal == SIGINT && interrupted_) return kill_all();
    interrupted_ = interrupted_ || signal == SIGINT;
    if (!stopping_) say(fmt::format("{} received and passed on to {} worker(s).", signal_name(signal), workers_.size()));
    stop(signal, 128 + signal);
  }

  // The first reason to stop decides the exit code, and starts the clock.
  void stop(int signal, int exit_code) {
    for (auto& worker : workers_) worker.send(signal);
    if (stopping_) return;
    stopping_ = true;
    exit_code_ = exit_code;
    deadline_ = Clock::now() + plan_.grace_period;
  }

  void kill_all() {
    for (auto& worker : workers_) worker.send(SIGKILL);
    deadline_.reset();
  }

  // Ctrl-Z: workers are in groups of their own, which the terminal does not stop with us.
  void suspend() {
    for (auto& worker : workers_) worker.send(SIGSTOP);
    terminal_.take_back();
    ::raise(SIGTTIN);  // unlike SIGSTOP, it does nothing where no shell is there to let us go on
    lend_terminal();
    for (auto& worker : workers_) worker.send(SIGCONT);
  }

  const LaunchPlan& plan_;
  const std::string path_;
  const SignalScope signals_;  // before the workers, so that the end of none is missed
  TerminalLoan terminal_;
  std::vector<WorkerProcess> workers_;
  bool lends_terminal_ = false;
  bool interrupted_ = false;
  bool stopping_ = false;
  std::optional<Clock::time_point> deadline_ = {};
  int exit_code_ = 0;
};

std::string search_path() {
  if (const char* path = std::getenv("PATH")) return path;
  return "/bin:/usr/bin";  // what execvp takes when PATH is not set
}

}  // namespace

int run_launch(const LaunchPlan& plan) {
  if (plan.workers.empty() || plan.workers.front().argv.empty()) throw UsageError("The launch plan names no program to run.");
  const ProgramPath program = find_program(plan.workers.front().argv.front(), search_path());
  if (program.exit_code != 0) {
    say(program.problem);
    return program.exit_code;
  }
  return Supervisor(plan, program.path).run();
}

}  // namespace accelerate
