#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <accelerate/launch/launch_plan.h>

#include "launch/watchdog.h"
#include "output/worker_output.h"

namespace accelerate::detail {

/// Where a worker's stdin comes from.
enum class WorkerInput { inherited, terminal, empty };

/// The initial state of a worker.
struct WorkerStart {
  WorkerInput input = WorkerInput::inherited;
  WorkerStreams streams = {};
  /// The worker registers its own group there: the launcher may be killed before it could.
  const Watchdog& watchdog;
  int slot;
};

/// Forks a process for `rank` that leads its own group, dies with this one, and starts as `start` says; it calls `become`, which
/// must not return. Returns its process id. Throws WorkerError when fork fails.
pid_t fork_worker(int rank, const WorkerStart& start, const std::function<void()>& become);

/// A program that a new process is about to become: all that exec needs, allocated before the fork.
class ProgramImage {
 public:
  /// `path` as `plan` says, without the variables in `removed`.
  ProgramImage(const WorkerPlan& plan, const std::string& path, const std::vector<std::string>& removed);
  ProgramImage(const ProgramImage&) = delete;
  ProgramImage& operator=(const ProgramImage&) = delete;

  /// In the new process. Signals are as a program expects them, but that those in `ignored` are ignored.
  [[noreturn]] void become(std::span<const int> ignored = {}) const;

 private:
  const std::string path_, shown_path_;
  std::vector<std::string> arguments_, variables_;
  const std::vector<char*> argv_, environment_;
  const std::vector<unsigned long> cpus_;
};

/// Starts `path` as `plan` says, without the variables in `removed`, in a process as `fork_worker` makes it. It ignores the
/// signals in `ignored`.
pid_t start_program(const WorkerPlan& plan, const std::string& path, const std::vector<std::string>& removed,
                    const WorkerStart& start, std::span<const int> ignored = {});

/// One started worker and the process group it leads: all that it starts and does not put elsewhere.
class WorkerProcess {
 public:
  /// The worker of `rank`, just started as process `pid`.
  WorkerProcess(int rank, pid_t pid) : rank_(rank), pid_(pid), started_(std::chrono::steady_clock::now()) {}

  /// Its rank.
  int rank() const { return rank_; }
  /// Process id, and the number of its group.
  pid_t pid() const { return pid_; }
  /// The wait status of the worker itself, once it has exited.
  std::optional<int> status() const { return status_; }
  /// From start to exit, or until now.
  std::chrono::duration<double> running_time() const;
  /// True once the worker and its whole group are gone, apart from processes that we may not signal.
  bool group_is_gone() const { return gone_; }

  /// True when `group` is the worker's, and not gone.
  bool leads(pid_t group) const { return group == pid_ && !gone_; }

  /// Reaps exited processes without blocking. Returns true when the worker was stopped (SIGSTOP) since the last call.
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
