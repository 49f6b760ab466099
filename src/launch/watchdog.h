#pragma once

#include <sys/types.h>

#include <string>

namespace accelerate::detail {

/// The variable that marks all that a launch has started. A launch inside of another one adds its own mark to the list.
inline constexpr char kLaunchMarkVariable[] = "ACCELERATE_LAUNCH_ID";

/// The watchdog of a launch: a small process ("accelerate-wdog") that outlives a launcher that is killed outright, and then
/// kills the process groups that the launcher had named to it, and every process that carries the launch's mark in its
/// environment. The kernel kills the workers themselves in that case, but not what they started; and a descendant that has left
/// its group (setsid, timeout) has lost its ancestors by then, so that nothing but what it inherited tells where it comes from.
class Watchdog {
 public:
  /// Starts the process; it can hold `count` groups. Throws WorkerError when no process can be made.
  explicit Watchdog(int count);
  /// A watchdog that was not dismissed takes the launcher for dead, and ends what it holds.
  ~Watchdog() { release(); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  pid_t pid() const { return pid_; }

  /// The value of `kLaunchMarkVariable` for the workers.
  std::string marks() const;

  /// Names the group that has place `slot` from now on.
  void hold(int slot, pid_t group) const { tell(slot, group); }
  /// The group at `slot` is gone, and its number may be given to strangers.
  void forget(int slot) { tell(slot, 0); }

  /// The launch is over: ends the process, which touches nothing. Returns when it has ended.
  void dismiss();

  /// Closes this process's end. For a worker that is a copy of the launcher: it would be taken for the launcher, alive.
  void release();

 private:
  void tell(int slot, pid_t group) const;

  std::string mark_;
  pid_t pid_ = -1;
  int socket_ = -1;
};

}  // namespace accelerate::detail
