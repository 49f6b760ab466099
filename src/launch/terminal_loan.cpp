#include "launch/terminal_loan.h"

#include <unistd.h>

namespace accelerate::detail {

bool TerminalLoan::possible() { return ::tcgetpgrp(STDIN_FILENO) == ::getpgrp(); }

void TerminalLoan::lend_to(pid_t group) {
  // The worker may have been quicker and taken it already.
  if (possible() || ::tcgetpgrp(STDIN_FILENO) == group) lent_ = ::tcsetpgrp(STDIN_FILENO, group) == 0;
}

void TerminalLoan::take_back() {
  if (lent_) ::tcsetpgrp(STDIN_FILENO, ::getpgrp());
  lent_ = false;
}

}  // namespace accelerate::detail
