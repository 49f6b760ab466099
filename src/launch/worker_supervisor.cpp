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
#include "hosts/child_processes.h"
#include "launch/place_variables.h"

namespace accelerate::detail {
namespace {

/// How long a machine waits for others before it says so, and then between two such lines.
constexpr std::chrono::seconds kBeforeNotice{10}, kBetweenNotices{60};

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

// Keys typed at a terminal that was lent to a worker, and its hang-up, signal the worker and not us.
bool is_end_by_terminal(int status) {
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status) == 128 + SIGINT;  // programs that clean up first, and shells
  return WTERMSIG(status) == SIGINT || WTERMSIG(status) == SIGQUIT || WTERMSIG(status) == SIGHUP;
}

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) return "was killed by " + signal_name(WTERMSIG(status));
  return fmt::format("failed with exit code {}", WEXITSTATUS(status));
}

// A timeout for poll: rounded up, or it would spin when a deadline is less than a millisecond away.
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
      stdin_signals_(plan.signals_from_stdin),
      preexisting_children_(list_children(::getpid())),
      watchdog_(static_cast<int>(plan.workers.size())) {}

LaunchEnd WorkerSupervisor::run() {
  if (kind_ == WorkerKind::program) {
    for (const auto& note : plan_.notes) say(escaped(note));
  }
  if (plan_.machines) {
    machines_ = MachineGroup::join(*plan_.machines);
    if (const std::string warning = machines_->warning(); !warning.empty()) say(escaped(warning));
  }
  for (int attempt = 0;; ++attempt) {
    if (machines_ && !await_round()) break;
    if (machines_) attempt = round_.number;  // a machine that was replaced counts with the others
    const int restarts = machines_ ? round_.restarts : attempt;
    restarts_left_ = restarts < plan_.max_restarts;
    run_attempt(attempt);
    if (!starts_again()) break;
    if (end_.sequel == Sequel::restart)
      say(fmt::format("attempt {} of {}: restarting all ranks.", restarts + 2, plan_.max_restarts + 1));
  }
  watchdog_.dismiss();
  finish_output();
  return end_;
}

bool WorkerSupervisor::starts_again() const {
  if (told_to_end_ || (!end_.failed && !end_.elsewhere)) return false;
  return end_.sequel == Sequel::regroup || (end_.sequel == Sequel::restart && restarts_left_);
}

void WorkerSupervisor::release_in_child() {
  output_.release();
  watchdog_.release();
  failure_notes_.release();
  signals_.release();
  if (machines_) machines_->release();
}

// Ranks of all machines start together. False when this machine is stopped meanwhile, cannot be part of the group, or was never
// needed.
bool WorkerSupervisor::await_round() {
  phase_ = Phase::running;
  deadline_.reset();
  end_ = {};
  workers_.clear();
  machines_->be_ready();
  next_notice_ = Clock::now() + kBeforeNotice;
  for (;;) {
    machines_->serve();
    if (const auto round = machines_->take_round()) {
      round_ = *round;
      next_notice_.reset();
      return true;
    }
    if (const std::string refusal = machines_->refusal(); !refusal.empty()) {
      end_ = {.exit_code = EXIT_FAILURE, .problem = escaped(refusal)};
      if (kind_ == WorkerKind::program) say(end_.problem);
      return false;
    }
    if (machines_->all_succeeded()) {
      say("the run has ended; it had no need of this machine.");
      return false;
    }
    wait_for_events();
    while (const auto signal = take_signal()) answer(*signal);
    if (phase_ != Phase::running) return false;
  }
}

void WorkerSupervisor::run_attempt(int attempt) {
  phase_ = Phase::running;
  deadline_.reset();
  end_ = {};
  if (machines_) output_.number_ranks(round_.first_rank);
  start(attempt);
  while (!finished()) {
    wait_for_events();
    while (const auto signal = take_signal()) answer(*signal);
    if (machines_) hear_machines();
    if (deadline_ && Clock::now() >= *deadline_) act_on_deadline();
  }
  terminal_.take_back();  // from a group that has exited
}

// Every message of the launcher goes through here.
void WorkerSupervisor::say(const std::string& line) { output_.say(line); }

void WorkerSupervisor::start(int attempt) {
  workers_.clear();
  suspect_ = nullptr;
  waits_for_cause_ = has_succeeded_ = collective_failed_ = false;
  failure_notes_.clear();
  workers_.reserve(plan_.workers.size());
  try {
    for (WorkerPlan worker : plan_.workers) {
      const int slot = static_cast<int>(workers_.size());
      const auto count = worker.variables.find("TORCHELASTIC_RESTART_COUNT");
      if (count != worker.variables.end()) count->second = std::to_string(attempt);
      if (machines_) place_in_round(worker, slot, round_, *plan_.machines);
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

// Several readers of one stdin would each get a part of it, so only rank 0 has it. A terminal has one foreground group: a
// single program is put there, but with several, Ctrl-C must reach us, and reading would stop rank 0.
WorkerInput WorkerSupervisor::input_of(int rank) {
  if (rank != 0 || plan_.signals_from_stdin || plan_.signals_to_stdin) return WorkerInput::empty;
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
  if (phase_ == Phase::running) return all_have_ended() && (!machines_ || machines_->all_succeeded());
  if (phase_ == Phase::last_words || !std::all_of(workers_.begin(), workers_.end(), is_gone)) return false;
  return end_orphans();
}

// Returns when a signal is pending, a watched descriptor is ready, or the deadline has passed.
void WorkerSupervisor::wait_for_events() {
  std::vector<pollfd> watched = {{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}};
  output_.add_to(watched);
  stdin_signals_.add_to(watched);
  auto deadline = deadline_;
  if (machines_) {
    machines_->add_to(watched);
    for (const auto& other : {machines_->deadline(), next_notice_}) {
      if (other) deadline = std::min(deadline.value_or(*other), *other);
    }
  }
  ::poll(watched.data(), watched.size(), milliseconds_until(deadline));
  output_.serve();
  if (next_notice_ && Clock::now() >= *next_notice_) {
    say(fmt::format("{}waiting for {}.", has_succeeded_ ? "all ranks of this machine have ended; " : "",
                    escaped(machines_->awaited())));
    next_notice_ = Clock::now() + kBetweenNotices;
  }
}

std::optional<ArrivedSignal> WorkerSupervisor::take_signal() {
  if (const auto signal = signals_.take()) return signal;
  if (const auto number = stdin_signals_.take()) return ArrivedSignal{.number = *number, .process = 0};
  return std::nullopt;
}

// What the launchers of other machines have told.
void WorkerSupervisor::hear_machines() {
  if (phase_ == Phase::running && !has_succeeded_ && all_have_ended()) {
    has_succeeded_ = true;
    machines_->report_success();
    next_notice_ = Clock::now() + kBeforeNotice;
  }
  machines_->serve();
  while (const auto failure = machines_->take_failure()) note_machine_failure(*failure);
}

// As a failure here: a rank that failed on its own is to blame before one whose collective failed.
void WorkerSupervisor::note_machine_failure(const MachineFailure& failure) {
  const bool is_first = phase_ == Phase::running;
  const bool is_cause = failure.by_itself && (suspect_ != nullptr || collective_failed_) && !told_to_end_;
  if (!is_first && !is_cause) return;
  suspect_ = nullptr;
  collective_failed_ = !failure.by_itself;
  next_notice_.reset();
  const std::string who = failure.rank ? fmt::format("rank {} on machine {} ({})", *failure.rank, failure.machine, failure.host)
                                       : fmt::format("machine {} ({})", failure.machine, failure.host);
  end_ = {.exit_code = failure.exit_code,
          .elsewhere = true,
          .sequel = failure.sequel,
          .problem = fmt::format("{} {}; stopping the ranks of this machine.", escaped(who), escaped(failure.text))};
  if (kind_ == WorkerKind::program || starts_again()) say(end_.problem);
  if (!is_first && phase_ != Phase::last_words) return;  // they are being stopped
  phase_ = Phase::last_words;
  deadline_ = Clock::now() + plan_.last_words;
  if (all_have_ended()) stop(SIGTERM);
}

void WorkerSupervisor::tell_machines(const std::optional<int>& rank, bool by_itself, const std::string& text) {
  if (machines_) machines_->report({.rank = rank, .exit_code = end_.exit_code, .by_itself = by_itself, .text = text});
}

void WorkerSupervisor::answer(const ArrivedSignal& signal) {
  if (signal.number == SIGCHLD) {
    look_at_workers(signal.process);
  } else if (signal.number == SIGTSTP) {
    suspend();
  } else if (signal.number == SIGWINCH) {
    output_.resize();
    send_to_all(SIGWINCH);  // the terminals of the workers have not changed
  } else if (signal.number == SIGUSR1 || signal.number == SIGUSR2) {
    send_to_all(signal.number);  // a notification for the programs, such as Slurm's --signal, not a request to stop
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

// One SIGCHLD may stand for the exit of several workers; the process it names exited first.
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

// The others are not stopped at once: their errors about the lost peer may say more than the rank that died. And after a failed
// collective the cause may be one of them: a rank that fails on its own is blamed then.
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

// A rank that has failed on its own, and has not exited yet.
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
  const bool by_itself = failure_notes_.of(slot_of(worker)) != FailureNote::collective;
  collective_failed_ = !by_itself;
  const std::string what =
      fmt::format("{} after {:.1f} s{}", describe_end(status), seconds, by_itself ? "" : ", because a collective failed");
  tell_machines(worker.rank(), by_itself, what);
  if (kind_ == WorkerKind::function && !restarts_left_) return;
  const auto others = workers_.size() - 1;
  const int local_rank = static_cast<int>(slot_of(worker));
  output_.drain(local_rank);
  const auto lines = output_.last_lines(local_rank);
  const std::string& name = plan_.workers[slot_of(worker)].name;
  say(fmt::format(
      "{} {}{}{}", name.empty() ? fmt::format("rank {}", worker.rank()) : escaped(name), what,
      others == 0 ? "." : fmt::format("; stopping the other {}{}.", name.empty() ? "rank" : "host", others == 1 ? "" : "s"),
      output_.was_just_written(lines) ? " Its last lines are above." : quote_lines(lines)));
}

void WorkerSupervisor::pass_on(int signal) {
  const bool regroups = starts_again() && end_.sequel == Sequel::regroup;
  told_to_end_ = true;
  if (!give_up_) give_up_ = Clock::now() + plan_.grace_period;
  if (signal == SIGINT && interrupted_) {
    give_up_ = Clock::now();
    return kill_all();
  }
  interrupted_ = interrupted_ || signal == SIGINT;
  if (phase_ == Phase::running || regroups) {
    end_ = {.exit_code = 128 + signal,
            .problem = fmt::format("{} received and forwarded to {} worker(s).", signal_name(signal), workers_.size())};
    if (kind_ == WorkerKind::program) say(end_.problem);
    tell_machines(std::nullopt, /*by_itself=*/true, "was stopped by " + signal_name(signal));
  }
  stop(signal);
}

// The first call starts the grace period. A stopped process (SIGSTOP) needs SIGCONT in order to exit.
void WorkerSupervisor::stop(int signal) {
  if (suspect_ != nullptr) blame(*suspect_);  // ranks that fail from now on may fail because of the signal
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

// Processes that left their worker's group (setsid) and lost their parent are our children now. Orphans still in a group are
// handled elsewhere.
bool WorkerSupervisor::is_orphan(pid_t child) const {
  const auto has = [child, group = ::getpgid(child)](const WorkerProcess& worker) {
    return worker.leads(group) || (worker.pid() == child && !worker.status());
  };
  return child != watchdog_.pid() && !preexisting_children_.contains(child) &&
         std::none_of(workers_.begin(), workers_.end(), has);
}

// waitid reports only the first zombie; if it is not ours to reap, the others stay until the end of the launch.
void WorkerSupervisor::reap_orphans() {
  siginfo_t ended = {};
  while (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0 && is_orphan(ended.si_pid)) {
    ::waitpid(ended.si_pid, nullptr, WNOHANG);
    ended.si_pid = 0;
  }
}

// Signals all that were not signalled yet, and returns true when there are none.
bool WorkerSupervisor::end_orphans() {
  std::set<pid_t> found;
  // A process that exited since the last scan may have left orphans to us.
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
      // A process of another user cannot be killed, and is not waited for.
      if (!told && ::kill(child, phase_ == Phase::killing ? SIGKILL : stop_signal_) != 0) continue;
      if (!told) ::kill(child, SIGCONT);
      found.insert(child);
    }
  }
  orphans_ = std::move(found);
  return orphans_.empty() && !again;
}

// A single worker was stopped: by Ctrl-Z, or because it read from the terminal in the background. After `bg` and `fg` the
// terminal is ours.
void WorkerSupervisor::answer_stop() {
  if (!TerminalLoan::possible()) return suspend();
  lend_terminal();
  workers_.front().send(SIGCONT);
}

// Ctrl-Z: workers have their own groups, which the terminal does not stop with us. The time until we continue does not count.
void WorkerSupervisor::suspend() {
  const auto began = Clock::now();
  for (auto& worker : workers_) worker.send(SIGSTOP);
  terminal_.take_back();
  output_.clear_rows();
  ::raise(SIGTTIN);  // unlike SIGSTOP, it has no effect when there is no shell to continue us
  for (auto* moment : {&deadline_, &give_up_}) {
    if (*moment) **moment += Clock::now() - began;
  }
  lend_terminal();
  for (auto& worker : workers_) worker.send(SIGCONT);
  output_.resize();  // also redraws the rows that were erased
}

// Waits for a slow reader of our output, as any writer to its pipe would. Once we are asked to stop, it must read something in
// each grace period; asked again, we stop waiting.
void WorkerSupervisor::finish_output() {
  output_.finish();
  deadline_ = give_up_;
  while (const size_t pending = output_.pending()) {
    if (deadline_ && Clock::now() >= *deadline_) return;
    wait_for_events();
    if (deadline_ && output_.pending() < pending) deadline_ = Clock::now() + plan_.grace_period;
    while (const auto signal = take_signal()) {
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
