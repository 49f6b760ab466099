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
#include "core/escaped.h"
#include "launch/child_processes.h"

namespace accelerate::detail {
namespace {

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

// Keys of a terminal that was lent to a worker, or the terminal's own end, act on the worker and not on us.
bool is_end_by_terminal(int status) {
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status) == 128 + SIGINT;  // programs that tidy up first, and shells
  return WTERMSIG(status) == SIGINT || WTERMSIG(status) == SIGQUIT || WTERMSIG(status) == SIGHUP;
}

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

std::string quote_lines(const std::vector<std::string>& lines) {
  std::string text = lines.empty() ? "" : " Its last lines:";
  for (const std::string& line : lines) text += "\n  | " + line;
  return text;
}

}  // namespace

WorkerSupervisor::WorkerSupervisor(const LaunchPlan& plan, StartWorker start_worker, WorkerKind kind)
    : plan_(plan),
      start_worker_(std::move(start_worker)),
      kind_(kind),
      output_(plan.output),
      preexisting_children_(list_children(::getpid())),
      watchdog_(static_cast<int>(plan.workers.size())) {}

LaunchEnd WorkerSupervisor::run() {
  if (kind_ == WorkerKind::program) {
    for (const auto& note : plan_.notes) say(escaped(note));
  }
  for (int attempt = 0;; ++attempt) {
    restarts_left_ = attempt < plan_.max_restarts;
    run_attempt(attempt);
    if (!end_.failed || !restarts_left_) break;
    say(fmt::format("attempt {} of {}: all ranks are started again.", attempt + 2, plan_.max_restarts + 1));
  }
  watchdog_.dismiss();
  finish_output();
  return end_;
}

void WorkerSupervisor::release_in_child() {
  output_.release();
  watchdog_.release();
  failure_notes_.release();
  signals_.release();
}

void WorkerSupervisor::run_attempt(int attempt) {
  phase_ = Phase::running;
  deadline_.reset();
  end_ = {};
  start(attempt);
  while (!finished()) {
    wait_for_events();
    while (const auto signal = signals_.take()) answer(*signal);
    if (deadline_ && Clock::now() >= *deadline_) act_on_deadline();
  }
  terminal_.take_back();  // from a dead group, whom nobody could type to
}

// Every line that a launch has for the user goes through here.
void WorkerSupervisor::say(const std::string& line) { output_.say(line); }

void WorkerSupervisor::start(int attempt) {
  workers_.clear();
  suspect_ = nullptr;
  waits_for_cause_ = false;
  failure_notes_.clear();
  workers_.reserve(plan_.workers.size());
  try {
    for (WorkerPlan worker : plan_.workers) {
      const auto count = worker.variables.find("TORCHELASTIC_RESTART_COUNT");
      if (count != worker.variables.end()) count->second = std::to_string(attempt);
      const int slot = static_cast<int>(workers_.size());
      const std::string notes = failure_notes_.place_of(workers_.size());
      if (plan_.workers.size() > 1 && !notes.empty()) worker.variables[kFailureNotesVariable] = notes;
      worker.variables[kLaunchMarkVariable] = watchdog_.marks();
      const WorkerStart how{
          .input = input_of(worker.rank), .streams = output_.open(slot, attempt), .watchdog = watchdog_, .slot = slot};
      workers_.emplace_back(worker.rank, start_worker_(worker, how));
      output_.started(slot);
    }
  } catch (const WorkerError& error) {
    end_ = {.exit_code = EXIT_FAILURE, .problem = error.what()};
    if (kind_ == WorkerKind::program) say(end_.problem);
    stop(SIGTERM);
  }
  lend_terminal();
}

void WorkerSupervisor::lend_terminal() {
  if (lends_terminal_ && !workers_.empty()) terminal_.lend_to(workers_.front().pid());
}

// Readers of one stdin would each get a part of it, so rank 0 alone has it. A terminal serves the one group in its
// foreground: a lone program is put there, but with several, Ctrl-C has to come to us, and reading would stop rank 0.
WorkerInput WorkerSupervisor::input_of(int rank) {
  if (rank != 0) return WorkerInput::empty;
  if (::isatty(STDIN_FILENO) == 0) return WorkerInput::inherited;
  lends_terminal_ = kind_ == WorkerKind::program && plan_.workers.size() == 1 && TerminalLoan::possible();
  return lends_terminal_ ? WorkerInput::terminal : WorkerInput::empty;
}

bool WorkerSupervisor::all_have_ended() const {
  return std::all_of(workers_.begin(), workers_.end(), [](auto& worker) { return worker.status().has_value(); });
}

bool WorkerSupervisor::finished() {
  const auto is_gone = [](const WorkerProcess& worker) { return worker.group_is_gone(); };
  // A clean run may leave processes behind on purpose.
  if (phase_ == Phase::running) return all_have_ended();
  if (phase_ == Phase::last_words || !std::all_of(workers_.begin(), workers_.end(), is_gone)) return false;
  return end_orphans();
}

// Returns when a signal can be taken, something else that is watched has news, or the deadline has come.
void WorkerSupervisor::wait_for_events() {
  std::vector<pollfd> watched = {{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}};
  output_.add_to(watched);
  ::poll(watched.data(), watched.size(), milliseconds_until(deadline_));
  output_.serve();
}

void WorkerSupervisor::answer(const ArrivedSignal& signal) {
  if (signal.number == SIGCHLD) {
    look_at_workers(signal.process);
  } else if (signal.number == SIGTSTP) {
    suspend();
  } else if (signal.number == SIGWINCH) {
    output_.resize();
    send_to_all(SIGWINCH);  // their terminals are not the one that has changed
  } else if (signal.number == SIGUSR1 || signal.number == SIGUSR2) {
    send_to_all(signal.number);  // a word to the programs, as Slurm's --signal gives, and no order to end
  } else {
    pass_on(signal.number);
  }
}

void WorkerSupervisor::act_on_deadline() {
  if (phase_ == Phase::last_words && suspect_ != nullptr && !waits_for_cause_ && someone_unwinds()) {
    waits_for_cause_ = true;
    deadline_ = Clock::now() + plan_.grace_period;
  } else if (phase_ == Phase::last_words) {
    stop(SIGTERM);
  } else {
    kill_all();
  }
}

// Ends of several workers may be announced by one SIGCHLD; the process it names is the one that ended first.
void WorkerSupervisor::look_at_workers(pid_t first) {
  auto named = std::find_if(workers_.begin(), workers_.end(), [first](auto& worker) { return worker.pid() == first; });
  if (named != workers_.end()) look_at(*named);
  for (auto& worker : workers_) look_at(worker);
  reap_orphans();
  if (phase_ == Phase::last_words && all_have_ended()) stop(SIGTERM);
}

void WorkerSupervisor::look_at(WorkerProcess& worker) {
  const bool ended_before = worker.status().has_value();
  const bool gone_before = worker.group_is_gone();
  const bool stopped = worker.poll();
  if (stopped && lends_terminal_) answer_stop();
  if (worker.group_is_gone() && !gone_before) watchdog_.forget(static_cast<int>(slot_of(worker)));
  const bool told_to_end = phase_ == Phase::stopping || phase_ == Phase::killing;
  if (!ended_before && worker.status() && exit_code_of(*worker.status()) != 0 && !told_to_end) note_failure(worker);
}

// The others are not stopped at once: what they say about the peer they lost may tell more than the one that died. And where a
// collective failed, the cause may be one of them: who fails by itself is blamed then.
void WorkerSupervisor::note_failure(const WorkerProcess& worker) {
  const bool first = phase_ == Phase::running;
  if (!first && suspect_ == nullptr) return;
  const bool by_itself = failure_notes_.of(slot_of(worker)) != FailureNote::collective;
  if (first || by_itself) deadline_ = Clock::now() + plan_.last_words;
  phase_ = Phase::last_words;
  if (by_itself) {
    blame(worker);
  } else if (first) {
    suspect_ = &worker;
  }
}

// A rank that has failed by itself, and has not ended yet.
bool WorkerSupervisor::someone_unwinds() const {
  return std::any_of(workers_.begin(), workers_.end(), [this](const WorkerProcess& worker) {
    return !worker.status() && failure_notes_.of(slot_of(worker)) == FailureNote::own;
  });
}

void WorkerSupervisor::blame(const WorkerProcess& worker) {
  suspect_ = nullptr;
  const int status = *worker.status();
  const double seconds = worker.running_time().count();
  end_ = {.exit_code = exit_code_of(status), .failed = FailedWorker{worker.rank(), status, seconds}};
  if (lends_terminal_ && is_end_by_terminal(status)) restarts_left_ = false;
  if (kind_ == WorkerKind::function && !restarts_left_) return;
  const auto others = workers_.size() - 1;
  const int local_rank = static_cast<int>(slot_of(worker));
  output_.drain(local_rank);
  const auto lines = output_.last_lines(local_rank);
  say(fmt::format("rank {} {} after {:.1f} s{}{}{}", worker.rank(), describe_end(status), seconds,
                  failure_notes_.of(slot_of(worker)) == FailureNote::collective ? ", when a collective failed" : "",
                  others == 0   ? "."
                  : others == 1 ? "; the other rank is stopped."
                                : "; the other ranks are stopped.",
                  output_.was_just_written(lines) ? " Its last lines are above." : quote_lines(lines)));
}

void WorkerSupervisor::pass_on(int signal) {
  restarts_left_ = false;
  if (!give_up_) give_up_ = Clock::now() + plan_.grace_period;
  if (signal == SIGINT && interrupted_) {
    give_up_ = Clock::now();
    return kill_all();
  }
  interrupted_ = interrupted_ || signal == SIGINT;
  if (phase_ == Phase::running) {
    end_ = {.exit_code = 128 + signal,
            .problem = fmt::format("{} received and passed on to {} worker(s).", signal_name(signal), workers_.size())};
    if (kind_ == WorkerKind::program) say(end_.problem);
  }
  stop(signal);
}

// The first call starts the clock. What was stopped (SIGSTOP) has to go on in order to end.
void WorkerSupervisor::stop(int signal) {
  if (suspect_ != nullptr) blame(*suspect_);  // what fails from now on may fail because of the signal
  send_to_all(signal);
  send_to_all(SIGCONT);
  stop_signal_ = signal;
  if (phase_ == Phase::stopping || phase_ == Phase::killing) return;
  phase_ = Phase::stopping;
  deadline_ = Clock::now() + plan_.grace_period;
  end_orphans();
}

void WorkerSupervisor::kill_all() {
  phase_ = Phase::killing;
  deadline_.reset();
  send_to_all(SIGKILL);
}

void WorkerSupervisor::send_to_all(int signal) {
  for (auto& worker : workers_) worker.send(signal);
  for (pid_t orphan : orphans_) ::kill(orphan, signal);
}

// What left its worker's group (setsid) and then lost its parent is our child now. The groups' own orphans are not meant.
bool WorkerSupervisor::is_orphan(pid_t child) const {
  const auto has = [child, group = ::getpgid(child)](const WorkerProcess& worker) {
    return worker.leads(group) || (worker.pid() == child && !worker.status());
  };
  return child != watchdog_.pid() && !preexisting_children_.contains(child) &&
         std::none_of(workers_.begin(), workers_.end(), has);
}

// Only the first child that has ended is seen; when it is not ours to reap, the others wait for the end of the launch.
void WorkerSupervisor::reap_orphans() {
  siginfo_t ended = {};
  while (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0 && is_orphan(ended.si_pid)) {
    ::waitpid(ended.si_pid, nullptr, WNOHANG);
    ended.si_pid = 0;
  }
}

// Tells all to end that were not told yet, and returns true when there are none.
bool WorkerSupervisor::end_orphans() {
  std::set<pid_t> found;
  // One that has ended may have left us others since we looked.
  bool again = true;
  for (int looks = 0; again && looks < 100; ++looks) {
    again = false;
    for (pid_t child : list_children(::getpid())) {
      if (!is_orphan(child)) continue;
      if (::waitpid(child, nullptr, WNOHANG) != 0) {
        again = true;
        continue;
      }
      const bool told = orphans_.contains(child) || found.contains(child);
      // One that belongs to another user cannot be ended, and is not waited for.
      if (!told && ::kill(child, phase_ == Phase::killing ? SIGKILL : stop_signal_) != 0) continue;
      if (!told) ::kill(child, SIGCONT);
      found.insert(child);
    }
  }
  orphans_ = std::move(found);
  return orphans_.empty() && !again;
}

// A lone worker was stopped: by Ctrl-Z, or because it read from a terminal that it did not have. After `bg` and `fg` it is we
// who have it.
void WorkerSupervisor::answer_stop() {
  if (!TerminalLoan::possible()) return suspend();
  lend_terminal();
  workers_.front().send(SIGCONT);
}

// Ctrl-Z: workers are in groups of their own, which the terminal does not stop with us. The time until we go on does not count.
void WorkerSupervisor::suspend() {
  const auto began = Clock::now();
  for (auto& worker : workers_) worker.send(SIGSTOP);
  terminal_.take_back();
  output_.clear_rows();
  ::raise(SIGTTIN);  // unlike SIGSTOP, it does nothing where no shell is there to let us go on
  for (auto* moment : {&deadline_, &give_up_}) {
    if (*moment) **moment += Clock::now() - began;
  }
  lend_terminal();
  for (auto& worker : workers_) worker.send(SIGCONT);
  output_.resize();  // also draws what was taken off
}

// What a slow reader of ours has not taken yet is waited for, as writers of its pipe would. Once we are told to stop, it has to
// take something within each grace period; told again, we wait no longer.
void WorkerSupervisor::finish_output() {
  output_.finish();
  deadline_ = give_up_;
  while (const size_t pending = output_.pending()) {
    if (deadline_ && Clock::now() >= *deadline_) return;
    wait_for_events();
    if (deadline_ && output_.pending() < pending) deadline_ = Clock::now() + plan_.grace_period;
    while (const auto signal = signals_.take()) {
      if (signal->number == SIGCHLD || signal->number == SIGUSR1 || signal->number == SIGUSR2) continue;
      if (signal->number == SIGTSTP || signal->number == SIGWINCH) {
        answer(*signal);
        continue;
      }
      if (end_.exit_code == 0) end_ = {.exit_code = 128 + signal->number, .problem = signal_name(signal->number) + " received."};
      deadline_ = deadline_ ? Clock::now() : Clock::now() + plan_.grace_period;
    }
  }
}

}  // namespace accelerate::detail
