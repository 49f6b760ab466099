#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace accelerate::detail {

/// Tells the user that the rendezvous takes long, and whom it waits for: once, and then every minute.
class WaitNotices {
 public:
  using Clock = std::chrono::steady_clock;

  /// First after so long; 0: never.
  explicit WaitNotices(std::chrono::milliseconds after = {});

  /// Writes "accelerate: WHO has waited 12 s " and what `whom` says, if it is due. Asked only then.
  void tell_if_due(const std::string& who, const std::function<std::string()>& whom);
  /// When it is due.
  Clock::time_point due() const { return due_; }

 private:
  Clock::time_point began_ = Clock::now(), due_ = Clock::time_point::max();
};

}  // namespace accelerate::detail
