#pragma once

#include <cstdint>
#include <source_location>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "transport/transport.h"

namespace accelerate::detail {

class FailurePolicy;
struct CallNote;

/// A collective that runs while its rank computes. It is a call of its own: compared with those of the other ranks before it
/// starts, and logged as waiting from wait() on, so that a hang is reported as one of any other call is.
class BackgroundCollective {
 public:
  /// Nothing that runs.
  BackgroundCollective() = default;
  /// `call` has been announced under `number`. The failure policy outlives this.
  BackgroundCollective(FailurePolicy& failures, const CallNote& call, int64_t number, StartedCollective work, bool on_host);
  BackgroundCollective(BackgroundCollective&& other) noexcept;
  BackgroundCollective& operator=(BackgroundCollective&& other) noexcept;
  /// One that was not waited for ends by itself, and keeps its tensors until then.
  ~BackgroundCollective();

  explicit operator bool() const { return work_ != nullptr; }
  /// Returns when the tensors hold the result; on a device, when its stream waits for that. DistributedError names the rank that
  /// is missing.
  void wait();

 private:
  void leave() noexcept;

  FailurePolicy* failures_ = nullptr;
  const char* name_ = "";
  std::source_location where_ = {};
  int64_t number_ = 0;
  StartedCollective work_ = {};
  bool on_host_ = false;
};

}  // namespace accelerate::detail
