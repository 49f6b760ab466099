#include "launch/function_launch.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <string_view>

#include <accelerate/core/error.h>
#include "launch/signal_scope.h"
#include "launch/worker_supervisor.h"

namespace accelerate::detail {
namespace {

// Memory that the program shares with the supervisor and the workers: how the launch ended, and each rank's last message.
class SharedReport {
 public:
  explicit SharedReport(size_t workers) : size_(sizeof(End) + workers * kMessageBytes) {
    void* memory = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw WorkerError(fmt::format("Cannot start the workers: {}.", ::strerrordesc_np(errno)));
    end_ = static_cast<End*>(memory);  // all zero: not written yet
  }
  ~SharedReport() { ::munmap(end_, size_); }
  SharedReport(const SharedReport&) = delete;
  SharedReport& operator=(const SharedReport&) = delete;

  void set_message(size_t worker, std::string_view text) { copy(text, message_of(worker)); }

  void set_end(const LaunchEnd& end, size_t failed_worker) {
    copy(end.failed ? message_of(failed_worker) : end.problem, end_->message);
    end_->exit_code = end.exit_code;
    end_->signal = signal_of(end);
    end_->rank = end.failed ? end.failed->rank : -1;
    end_->seconds = end.failed ? end.failed->seconds : 0;
    end_->written = true;
  }

  std::optional<LaunchFailure> failure() const {
    if (!end_->written) return LaunchFailure{.exit_code = 1, .message = "The supervisor process was killed."};
    const int code = end_->exit_code;
    if (code == 0) return std::nullopt;
    return LaunchFailure{
        .rank = end_->rank, .exit_code = code, .signal = end_->signal, .message = end_->message, .seconds = end_->seconds};
  }

 private:
  static constexpr size_t kMessageBytes = 4096;
  struct End {
    bool written;
    int exit_code;
    int signal;
    int rank;
    double seconds;
    char message[kMessageBytes];
  };

  char* message_of(size_t worker) { return reinterpret_cast<char*>(end_ + 1) + worker * kMessageBytes; }

  static int signal_of(const LaunchEnd& end) {
    if (end.failed) return WIFSIGNALED(end.failed->status) ? WTERMSIG(end.failed->status) : 0;
    return std::max(0, end.exit_code - 128);  // one that this launch got
  }

  static void copy(std::string_view text, char* to) { to[text.copy(to, kMessageBytes - 1)] = '\0'; }

  size_t size_;
  End* end_;
};

// Not fflush(nullptr): it would wait for a thread that reads from stdin.
void flush_streams() {
  for (std::ostream* stream : {&std::cout, &std::cerr, &std::clog}) stream->flush();
  std::fflush(stdout);
  std::fflush(stderr);
}

void set_environment(const WorkerPlan& worker, const std::vector<std::string>& removed) {
  for (const auto& name : removed) ::unsetenv(name.c_str());
  for (const auto& [name, value] : worker.variables) ::setenv(name.c_str(), value.c_str(), 1);
}

// exit() in a function would destroy the program's static objects, and wait for threads that this copy does not have.
void end_without_destroying(int code, void*) {
  flush_streams();
  ::_exit(code);
}

[[noreturn]] void run_body(const std::function<void(int)>& body, int rank, size_t worker, SharedReport& report) {
  ::on_exit(end_without_destroying, nullptr);
  int code = EXIT_FAILURE;
  try {
    body(rank);
    code = EXIT_SUCCESS;
  } catch (const std::exception& error) {
    report.set_message(worker, error.what());
  } catch (...) {
    report.set_message(worker, "unknown exception");
  }
  flush_streams();
  ::_exit(code);
}

// One launch of functions, as the supervisor process sees it.
class FunctionLaunch {
 public:
  FunctionLaunch(const LaunchPlan& plan, const std::function<void(int)>& body, SharedReport& report, const sigset_t& mask)
      : plan_(plan), body_(body), report_(report), mask_(mask) {}

  void run() {
    const auto start = [this](const WorkerPlan& worker, const WorkerStart& how) { return start_function(worker, how); };
    WorkerSupervisor supervisor(plan_, start, WorkerKind::function);
    supervisor_ = &supervisor;
    const LaunchEnd end = supervisor.run();
    report_.set_end(end, end.failed ? index_of(end.failed->rank) : 0);
  }

 private:
  size_t index_of(int rank) const { return static_cast<size_t>(rank - plan_.workers.front().rank); }

  pid_t start_function(const WorkerPlan& worker, const WorkerStart& start) {
    const size_t index = index_of(worker.rank);
    report_.set_message(index, "");  // of an earlier attempt
    return fork_worker(worker.rank, start, [&] {
      supervisor_->release_in_child();
      ::sigprocmask(SIG_SETMASK, &mask_, nullptr);
      set_environment(worker, plan_.removed_variables);
      run_body(body_, worker.rank, index, report_);
    });
  }

  const LaunchPlan& plan_;
  const std::function<void(int)>& body_;
  SharedReport& report_;
  const sigset_t mask_;  // the program's
  WorkerSupervisor* supervisor_ = nullptr;
};

// The process between program and workers. It has one thread, whatever the program has, so signals can be waited for and
// children are its own. It begins with all signals blocked: no handler of the program runs here.
[[noreturn]] void supervise(FunctionLaunch launch, SharedReport& report, pid_t program) {
  ::prctl(PR_SET_PDEATHSIG, is_left_ignored(SIGTERM) ? SIGKILL : SIGTERM);
  if (::getppid() != program) ::_exit(EXIT_FAILURE);  // it died before the line above
  // Ctrl-Z arrives as this signal.
  sigset_t stop;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTTIN);
  ::sigprocmask(SIG_UNBLOCK, &stop, nullptr);
  try {
    launch.run();
  } catch (const std::exception& error) {
    report.set_end({.exit_code = EXIT_FAILURE, .problem = error.what()}, 0);
  }
  ::_exit(EXIT_SUCCESS);
}

}  // namespace

std::optional<LaunchFailure> run_functions(const LaunchPlan& plan, const std::function<void(int rank)>& body) {
  if (plan.workers.empty()) throw UsageError("The launch plan has no workers.");
  SharedReport report(plan.workers.size());
  flush_streams();  // or the workers would write it once more
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t program = ::getpid();
  const pid_t supervisor = ::fork();
  if (supervisor == 0) supervise(FunctionLaunch(plan, body, report, before), report, program);
  const int problem = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (supervisor < 0) throw WorkerError(fmt::format("Cannot start the workers: {}.", ::strerrordesc_np(problem)));
  // If the program ignores or reaps its children, this is ECHILD once the supervisor has exited; the report is in memory.
  while (::waitpid(supervisor, nullptr, 0) < 0 && errno == EINTR) continue;
  return report.failure();
}

}  // namespace accelerate::detail
