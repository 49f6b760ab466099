#pragma once

#include <sys/types.h>

namespace accelerate::detail {

/// Lends the terminal on stdin to a worker's process group: a group in the background that reads from it is stopped.
/// Does nothing when stdin is not a terminal, or this process is not in its foreground. SIGTTOU must be blocked meanwhile.
class TerminalLoan {
 public:
  /// True when stdin is a terminal and this process is in its foreground.
  static bool possible();

  TerminalLoan() = default;
  TerminalLoan(const TerminalLoan&) = delete;
  TerminalLoan& operator=(const TerminalLoan&) = delete;
  /// Takes the terminal back.
  ~TerminalLoan() { take_back(); }

  /// Lends the terminal to `group`.
  void lend_to(pid_t group);

  /// Ends the loan; the terminal belongs to this process's group again.
  void take_back();

 private:
  bool lent_ = false;
};

}  // namespace accelerate::detail
