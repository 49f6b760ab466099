#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <accelerate/launch/launch_plan.h>
#include "launch/failure_notes.h"
#include "launch/signal_scope.h"
#include "launch/terminal_loan.h"
#include "launch/watchdog.h"
#include "launch/worker_process.h"
#include "output/worker_output.h"

namespace accelerate::detail {

/// Starts one worker and returns its process id. Throws WorkerError when no process can be made.
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
  /// The rank to blame in the last attempt: see `run_launch`. None when all went well, or a signal to the launcher ended it.
  std::optional<FailedWorker> failed = {};
  /// Why the launch ended when it was not a rank's failure; empty when all went well.
  std::string problem = {};
};

/// What workers are. Of programs, the user reads on stderr how they failed, and a lone one may have the terminal. The failure of
/// a function is for the program that asked for the launch, so of these only restarts are said.
enum class WorkerKind { program, function };

/// Starts the workers of a plan, watches over them and ends them. See `run_launch` for the rules.
class WorkerSupervisor {
 public:
  /// `plan` outlives it.
  WorkerSupervisor(const LaunchPlan& plan, StartWorker start_worker, WorkerKind kind = WorkerKind::program);

  /// Runs the launch to its end.
  LaunchEnd run();

  /// For a worker that is a copy of this process: closes what is the launcher's, and gives SIGCHLD back its meaning.
  void release_in_child();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { running, last_words, stopping, killing };

  void say(const std::string& line);
  void run_attempt(int attempt);
  void start(int attempt);
  WorkerInput input_of(int rank);
  void lend_terminal();
  bool all_have_ended() const;
  bool finished();
  void wait_for_events();
  void answer(const ArrivedSignal& signal);
  void act_on_deadline();
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
  SignalScope signals_;                         // before the workers, so that the end of none is missed
  const std::set<pid_t> preexisting_children_;  // children that this process had before
  Watchdog watchdog_;
  FailureNotes failure_notes_;
  TerminalLoan terminal_;
  std::vector<WorkerProcess> workers_ = {};
  const WorkerProcess* suspect_ = nullptr;  // the first to fail, while the cause may be one that has not ended yet
  bool waits_for_cause_ = false;
  std::set<pid_t> orphans_ = {};  // of workers, outside their groups, and told to end
  Phase phase_ = Phase::running;
  int stop_signal_ = 0;
  bool lends_terminal_ = false;
  bool interrupted_ = false;
  bool restarts_left_ = false;
  std::optional<Clock::time_point> deadline_ = {};
  std::optional<Clock::time_point> give_up_ = {};  // when we were told to stop: how long a reader of ours may keep us waiting
  LaunchEnd end_ = {};
};

}  // namespace accelerate::detail
