#include "launch/worker_supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <accelerate/core/error.h>

namespace accelerate {
namespace {

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : fmt::format("signal {}", signal);
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) return "was ended by " + signal_name(WTERMSIG(status));
  return fmt::format("failed with exit code {}", WEXITSTATUS(status));
}

// What poll takes: rounded up, or a deadline less than a millisecond away would be polled for without a pause.
int milliseconds_until(std::optional<std::chrono::steady_clock::time_point> deadline) {
  if (!deadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<decltype(left)>(left, 0, 1'000'000'000));
}

}  // namespace

WorkerSupervisor::WorkerSupervisor(const LaunchPlan& plan, StartWorker start_worker)
    : plan_(plan), start_worker_(std::move(start_worker)) {}

int WorkerSupervisor::run() {
  for (const auto& note : plan_.notes) say(note);
  start();
  while (!finished()) {
    wait_for_events();
    while (const auto signal = signals_.take()) answer(*signal);
    if (deadline_ && Clock::now() >= *deadline_) kill_all();
  }
  return exit_code_;
}

// Every line that a launch has for the user goes through here.
void WorkerSupervisor::say(const std::string& line) { std::fputs(("accelerate launch: " + line + "\n").c_str(), stderr); }

void WorkerSupervisor::start() {
  workers_.reserve(plan_.workers.size());
  try {
    for (const auto& worker : plan_.workers) {
      workers_.emplace_back(worker.rank, start_worker_(worker, input_of(worker.rank)));
    }
  } catch (const WorkerError& error) {
    say(error.what());
    stop(SIGTERM, EXIT_FAILURE);
  }
  lend_terminal();
}

void WorkerSupervisor::lend_terminal() {
  if (lends_terminal_ && !workers_.empty()) terminal_.lend_to(workers_.front().pid());
}

// Readers of one stdin would each get a part of it, so rank 0 alone has it. A terminal serves the one group in its
// foreground: a lone worker is put there, but with several, Ctrl-C has to come to us, and reading would stop rank 0.
WorkerInput WorkerSupervisor::input_of(int rank) {
  if (rank != 0) return WorkerInput::empty;
  if (::isatty(STDIN_FILENO) == 0) return WorkerInput::inherited;
  lends_terminal_ = plan_.workers.size() == 1 && TerminalLoan::possible();
  return lends_terminal_ ? WorkerInput::terminal : WorkerInput::empty;
}

bool WorkerSupervisor::finished() const {
  return std::all_of(workers_.begin(), workers_.end(), [this](const WorkerProcess& worker) {
    return stopping_ ? worker.group_is_gone() : worker.status().has_value();
  });
}

// Returns when a signal can be taken, something else that is watched has news, or the deadline has come.
void WorkerSupervisor::wait_for_events() {
  std::vector<pollfd> watched = {{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}};
  ::poll(watched.data(), watched.size(), milliseconds_until(deadline_));
}

void WorkerSupervisor::answer(const ArrivedSignal& signal) {
  if (signal.number == SIGCHLD) {
    look_at_workers(signal.process);
  } else if (signal.number == SIGTSTP) {
    suspend();
  } else {
    pass_on(signal.number);
  }
}

// Ends of several workers may be announced by one SIGCHLD; the process it names is the one that ended first.
void WorkerSupervisor::look_at_workers(pid_t first) {
  auto named = std::find_if(workers_.begin(), workers_.end(), [first](auto& worker) { return worker.pid() == first; });
  if (named != workers_.end()) look_at(*named);
  for (auto& worker : workers_) look_at(worker);
}

void WorkerSupervisor::look_at(WorkerProcess& worker) {
  const bool ended_before = worker.status().has_value();
  const bool stopped = worker.poll();
  if (stopped && lends_terminal_) suspend();
  if (ended_before || !worker.status() || exit_code_of(*worker.status()) == 0 || stopping_) return;
  const auto others = workers_.size() - 1;
  say(fmt::format("rank {} {} after {:.1f} s{}", worker.rank(), describe_end(*worker.status()), worker.running_time().count(),
                  others == 0   ? "."
                  : others == 1 ? "; the other rank is stopped."
                                : "; the other ranks are stopped."));
  stop(SIGTERM, exit_code_of(*worker.status()));
}

void WorkerSupervisor::pass_on(int signal) {
  if (signal == SIGINT && interrupted_) return kill_all();
  interrupted_ = interrupted_ || signal == SIGINT;
  if (!stopping_) say(fmt::format("{} received and passed on to {} worker(s).", signal_name(signal), workers_.size()));
  stop(signal, 128 + signal);
}

// The first reason to stop decides the exit code, and starts the clock.
void WorkerSupervisor::stop(int signal, int exit_code) {
  for (auto& worker : workers_) worker.send(signal);
  if (stopping_) return;
  stopping_ = true;
  exit_code_ = exit_code;
  deadline_ = Clock::now() + plan_.grace_period;
}

void WorkerSupervisor::kill_all() {
  for (auto& worker : workers_) worker.send(SIGKILL);
  deadline_.reset();
}

// Ctrl-Z: workers are in groups of their own, which the terminal does not stop with us.
void WorkerSupervisor::suspend() {
  for (auto& worker : workers_) worker.send(SIGSTOP);
  terminal_.take_back();
  ::raise(SIGTTIN);  // unlike SIGSTOP, it does nothing where no shell is there to let us go on
  lend_terminal();
  for (auto& worker : workers_) worker.send(SIGCONT);
}

}  // namespace accelerate
