#pragma once

#include <csignal>

namespace accelerate::detail {

/// Blocks SIGPIPE in this thread, and permanently in every thread that is started meanwhile. gloo is created under it, because
/// its threads write to sockets without MSG_NOSIGNAL: else the death of a peer would kill this process silently, before it can be
/// reported as an error. The program's own threads keep their signal masks.
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
