#pragma once

#include <csignal>

namespace accelerate::detail {

/// Keeps SIGPIPE from this thread, and from every thread that is started meanwhile for as long as that lives. A library that
/// writes to sockets in threads of its own and does not ask for MSG_NOSIGNAL (gloo) is made under it: else a peer's death would
/// end this process without a word, before it can be told as an error. The program's own threads keep what they had.
class WithoutPipeSignal {
 public:
  WithoutPipeSignal();
  ~WithoutPipeSignal();
  WithoutPipeSignal(const WithoutPipeSignal&) = delete;
  WithoutPipeSignal& operator=(const WithoutPipeSignal&) = delete;

 private:
  sigset_t before_;
  bool pending_before_;
};

}  // namespace accelerate::detail
