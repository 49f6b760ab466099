#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <accelerate/launch/launch_plan.h>
#include "elastic/machine_group.h"
#include "hosts/stdin_signals.h"
#include "launch/failure_notes.h"
#include "launch/signal_scope.h"
#include "launch/terminal_loan.h"
#include "launch/watchdog.h"
#include "launch/worker_process.h"
#include "output/worker_output.h"

namespace accelerate::detail {

/// Starts one worker and returns its process id. Throws WorkerError when fork fails.
using StartWorker = std::function<pid_t(const WorkerPlan& plan, const WorkerStart& start)>;

/// The worker whose failure ended a launch.
struct FailedWorker {
  int rank = 0;
  /// As waitpid reports it.
  int status = 0;
  /// How long it ran, in seconds.
  double seconds = 0;
};

/// How a launch ended.
struct LaunchEnd {
  /// What `run_launch` returns.
  int exit_code = 0;
  /// The rank to blame in the last attempt: see `run_launch`. None on success, or when a signal to the launcher ended it.
  std::optional<FailedWorker> failed = {};
  /// Another machine failed, or the number of machines changes.
  bool elsewhere = false;
  Sequel sequel = Sequel::restart;
  /// Why the launch ended when it was not the failure of a rank here; empty on success.
  std::string problem = {};
};

/// What workers run. Failures of programs are reported on stderr, and a single one may get the terminal. The failure of a
/// function goes to the program that started the launch, so only restarts are reported.
enum class WorkerKind { program, function };

/// Starts the workers of a plan, watches over them and ends them. See `run_launch` for the rules.
class WorkerSupervisor {
 public:
  /// `plan` outlives it.
  WorkerSupervisor(const LaunchPlan& plan, StartWorker start_worker, WorkerKind kind = WorkerKind::program);

  /// Runs the launch to its end.
  LaunchEnd run();

  /// For a worker that is a fork of this process: closes the launcher's descriptors and restores SIGCHLD.
  void release_in_child();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { running, last_words, stopping, killing };

  void say(const std::string& line);
  bool await_round();
  bool starts_again() const;
  void run_attempt(int attempt);
  void start(int attempt);
  WorkerInput input_of(int rank);
  void lend_terminal();
  bool all_have_ended() const;
  bool finished();
  void wait_for_events();
  std::optional<ArrivedSignal> take_signal();
  void answer(const ArrivedSignal& signal);
  void act_on_deadline();
  void hear_machines();
  void note_machine_failure(const MachineFailure& failure);
  void tell_machines(const std::optional<int>& rank, bool by_itself, const std::string& text);
  void look_at_workers(pid_t first);
  void look_at(WorkerProcess& worker);
  void note_failure(const WorkerProcess& worker);
  void blame(const WorkerProcess& worker);
  bool someone_unwinds() const;
  size_t slot_of(const WorkerProcess& worker) const { return static_cast<size_t>(&worker - workers_.data()); }
  void pass_on(int signal);
  void stop(int signal);
  void kill_all();
  void send_to_all(int signal);
  bool is_orphan(pid_t child) const;
  void reap_orphans();
  bool end_orphans();
  void answer_stop();
  void suspend();
  void finish_output();

  const LaunchPlan& plan_;
  const StartWorker start_worker_;
  const WorkerKind kind_;
  WorkerOutput output_;
  SignalScope signals_;  // before the workers, so that no exit is missed
  StdinSignals stdin_signals_;
  const std::set<pid_t> preexisting_children_;  // children that this process had before
  Watchdog watchdog_;
  FailureNotes failure_notes_;
  TerminalLoan terminal_;
  std::unique_ptr<MachineGroup> machines_ = {};  // null for a launch on one machine
  Round round_ = {};
  bool has_succeeded_ = false;                         // and told the other machines
  std::optional<Clock::time_point> next_notice_ = {};  // of whom this machine waits for
  std::vector<WorkerProcess> workers_ = {};
  const WorkerProcess* suspect_ = nullptr;  // the first to fail, while the cause may be a rank that still runs
  bool waits_for_cause_ = false;
  bool collective_failed_ = false;  // that is why the ranks end, as far as is known: the cause may still be reported
  std::set<pid_t> orphans_ = {};    // orphans of workers outside their groups, already signalled
  Phase phase_ = Phase::running;
  int stop_signal_ = 0;
  bool lends_terminal_ = false;
  bool interrupted_ = false;
  bool restarts_left_ = false;
  bool told_to_end_ = false;  // by a signal to the launcher
  std::optional<Clock::time_point> deadline_ = {};
  std::optional<Clock::time_point> give_up_ = {};  // set when we are asked to stop: how long a reader of our output may block us
  LaunchEnd end_ = {};
};

}  // namespace accelerate::detail
