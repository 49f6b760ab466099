#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace accelerate::detail {

/// Observes every operator that this thread, and the backward passes it begins, call while it lives.
class OperatorWatch {
 public:
  OperatorWatch();
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

  /// The same for the same operators, in whatever order: threads of a backward pass take turns as they come.
  uint64_t fingerprint() const;
  /// The last one that was begun, after the one that called it; "" before the first.
  std::string last() const;

 private:
  struct Heard;

  std::shared_ptr<Heard> heard_;
  c10::DebugInfoGuard handed_on_;
  std::optional<at::CallbackHandle> handle_;
};

}  // namespace accelerate::detail
