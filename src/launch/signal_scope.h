#pragma once

#include <signal.h>

#include <optional>
#include <string>

namespace accelerate::detail {

/// A signal that arrived, and the process that it is about (SIGCHLD) or from.
struct ArrivedSignal {
  int number = 0;
  pid_t process = 0;
};

/// While it lives, the signals of a launch (those that are not ignored) are queued instead of delivered, and orphans of workers
/// become our children (child subreaper).
class SignalScope {
 public:
  SignalScope();
  /// Discards signals still in the queue: the exit code has answered them, or they come from workers that we stopped.
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

  /// For a worker that is a fork of this process: restores the previous state. Nothing else may be called then.
  void release();

  /// Becomes readable when a signal can be taken.
  int descriptor() const { return descriptor_; }

  /// The next signal that has arrived, if any. Never waits.
  std::optional<ArrivedSignal> take() const;

 private:
  sigset_t taken_ = {};
  sigset_t mask_before_ = {};
  struct sigaction child_before_ = {};
  int reaper_before_ = 0;
  int descriptor_ = -1;
};

/// True when `signal` is one that a launch takes from outside, and this process began with it ignored (nohup, a job that a script
/// starts with &). Such a signal is not taken, and stays ignored in the workers.
bool is_left_ignored(int signal);

/// "SIGTERM".
std::string signal_name(int signal);

}  // namespace accelerate::detail
