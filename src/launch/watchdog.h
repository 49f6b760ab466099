#pragma once

#include <sys/types.h>

#include <string>

namespace accelerate::detail {

/// The environment variable that marks every process of a launch. A nested launch appends its own mark to the list.
inline constexpr char kLaunchMarkVariable[] = "ACCELERATE_LAUNCH_ID";

/// The watchdog of a launch: a small process ("accelerate-wdog") that outlives a launcher that got SIGKILL, and then kills the
/// process groups that the launcher registered, and every process with the launch's mark in its environment. The kernel kills
/// the workers themselves in that case, but not their children; and a descendant that has left its group (setsid, timeout) is
/// orphaned by then, so that only its inherited environment identifies it.
class Watchdog {
 public:
  /// Starts the process, with room for `count` groups. Throws WorkerError when fork fails.
  explicit Watchdog(int count);
  /// A watchdog that was not dismissed considers the launcher dead, and kills the registered groups.
  ~Watchdog() { release(); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  pid_t pid() const { return pid_; }

  /// The value of `kLaunchMarkVariable` for the workers.
  std::string marks() const;

  /// Registers `group` at `slot`.
  void hold(int slot, pid_t group) const { tell(slot, group); }
  /// The group at `slot` is gone, and its id may be reused by an unrelated process.
  void forget(int slot) { tell(slot, 0); }

  /// The launch is over: stops the watchdog, which kills nothing. Returns when it has exited.
  void dismiss();

  /// Closes this process's end. For a worker that is a fork of the launcher: else the watchdog would think that the launcher
  /// lives.
  void release();

 private:
  void tell(int slot, pid_t group) const;

  std::string mark_;
  pid_t pid_ = -1;
  int socket_ = -1;
};

}  // namespace accelerate::detail
