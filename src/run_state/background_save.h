#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "run_state/save_job.h"

namespace accelerate::detail {

/// A thread that does a job of saving while the run goes on.
class BackgroundSave {
 public:
  explicit BackgroundSave(SaveJob job);
  /// Waits: a run that comes to its end has its last checkpoint. What nobody has asked for is told on stderr, since nobody can be
  /// told otherwise.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Waits until this process's files are written. Returns what went wrong with them, or nothing.
  std::string part();
  /// Peers whose report is not there yet are not waited for any longer.
  void give_up() { give_up_ = true; }
  /// Waits for all of it, when all peers have written their parts: for a report that cannot be seen here, a minute. Returns what
  /// went wrong, or nothing.
  std::string result();

 private:
  void work();

  SaveJob job_;
  std::atomic<bool> part_written_ = false, reports_seen_ = false, done_ = false, give_up_ = false;
  bool told_ = false;
  // Written by the thread before part_written_ and done_.
  std::string part_failure_, failure_;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace accelerate::detail
