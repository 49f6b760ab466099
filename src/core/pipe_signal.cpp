#include "core/pipe_signal.h"

#include <ctime>

namespace accelerate::detail {
namespace {

sigset_t pipe_signal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

bool is_pending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

WithoutPipeSignal::WithoutPipeSignal() : pending_before_(is_pending()) {
  const sigset_t set = pipe_signal();
  pthread_sigmask(SIG_BLOCK, &set, &before_);
}

WithoutPipeSignal::~WithoutPipeSignal() {
  const sigset_t set = pipe_signal();
  const timespec now = {};
  // A pending SIGPIPE came from a socket of the library: delivering it now would kill the program after all.
  if (!pending_before_ && is_pending()) sigtimedwait(&set, nullptr, &now);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace accelerate::detail
