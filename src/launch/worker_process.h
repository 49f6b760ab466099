#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include <accelerate/launch/launch_plan.h>

#include "launch/watchdog.h"
#include "output/worker_output.h"

namespace accelerate::detail {

/// How a worker's stdin begins.
enum class WorkerInput { inherited, terminal, empty };

/// What a new worker begins with.
struct WorkerStart {
  WorkerInput input = WorkerInput::inherited;
  WorkerStreams streams = {};
  /// Hears of the worker's group from the worker itself: the launcher may be killed before it could tell.
  const Watchdog& watchdog;
  int slot;
};

/// Makes a process for `rank` that leads a group of its own, ends with this one, and begins as `start` says; in it, `become` is
/// called and must not return. Returns its process id. Throws WorkerError when no process can be made.
pid_t fork_worker(int rank, const WorkerStart& start, const std::function<void()>& become);

/// Starts `path` as `plan` says, without the variables in `removed`, in a process as `fork_worker` makes it.
pid_t start_program(const WorkerPlan& plan, const std::string& path, const std::vector<std::string>& removed,
                    const WorkerStart& start);

/// One started worker and the process group it leads: all that it starts and does not put elsewhere.
class WorkerProcess {
 public:
  /// The worker of `rank`, just started as process `pid`.
  WorkerProcess(int rank, pid_t pid) : rank_(rank), pid_(pid), started_(std::chrono::steady_clock::now()) {}

  /// Its place in the launch.
  int rank() const { return rank_; }
  /// Process id, and the number of its group.
  pid_t pid() const { return pid_; }
  /// The wait status of the worker itself, once it has ended.
  std::optional<int> status() const { return status_; }
  /// From start to end, or until now.
  std::chrono::duration<double> running_time() const;
  /// True once the worker and all others in its group are gone, or only such are left as we may not signal.
  bool group_is_gone() const { return gone_; }

  /// True when `group` is the worker's, and not gone.
  bool leads(pid_t group) const { return group == pid_ && !gone_; }

  /// Looks, without waiting, at what has ended. Returns true when the worker was stopped (not ended) since the last look.
  bool poll();

  /// Sends `signal` to everything in the group.
  void send(int signal);

 private:
  void note_end(int status);

  int rank_;
  pid_t pid_;
  std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point ended_ = {};
  std::optional<int> status_ = {};
  bool gone_ = false;
};

}  // namespace accelerate::detail
