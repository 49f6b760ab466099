#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/launch/launch_plan.h>
#include "launch/signal_scope.h"
#include "launch/terminal_loan.h"
#include "launch/worker_process.h"

namespace accelerate {

/// Starts one worker and returns its process id. Throws WorkerError when no process can be made.
using StartWorker = std::function<pid_t(const WorkerPlan& plan, WorkerInput input)>;

/// Starts the workers of a plan, watches over them and ends them. See `run_launch` for the rules.
class WorkerSupervisor {
 public:
  /// `plan` outlives it.
  WorkerSupervisor(const LaunchPlan& plan, StartWorker start_worker);

  /// Runs the launch to its end and returns its exit code.
  int run();

 private:
  using Clock = std::chrono::steady_clock;

  void say(const std::string& line);
  void start();
  void lend_terminal();
  WorkerInput input_of(int rank);
  bool finished() const;
  void wait_for_events();
  void answer(const ArrivedSignal& signal);
  void look_at_workers(pid_t first);
  void look_at(WorkerProcess& worker);
  void pass_on(int signal);
  void stop(int signal, int exit_code);
  void kill_all();
  void suspend();

  const LaunchPlan& plan_;
  const StartWorker start_worker_;
  const SignalScope signals_;  // before the workers, so that the end of none is missed
  TerminalLoan terminal_;
  std::vector<WorkerProcess> workers_;
  bool lends_terminal_ = false;
  bool interrupted_ = false;
  bool stopping_ = false;
  std::optional<Clock::time_point> deadline_ = {};
  int exit_code_ = 0;
};

}  // namespace accelerate
