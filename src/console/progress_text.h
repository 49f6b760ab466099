#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace accelerate::detail {

/// All that a line about progress says.
struct ProgressSnapshot {
  std::string description = {};
  int64_t count = 0;
  std::optional<int64_t> total = {};
  std::string unit = "it";
  double elapsed_seconds = 0;
  /// Zero as long as nothing is known.
  double per_second = 0;
  std::string postfix = {};
};

/// `training:  40% 40/100 [00:12<00:18, 3.3it/s, loss=0.5]`, for a log.
std::string plain_line(const ProgressSnapshot& snapshot);

/// The same with a bar, in at most `columns`. In a narrow place the bar goes first, then postfix, rate and times; what is
/// shown is shown whole.
std::string bar_line(const ProgressSnapshot& snapshot, int columns, bool unicode);

/// Items per second, forgetting what is old: the speed of the last ten seconds, or of the last few items where they are slow.
class RateEstimate {
 public:
  /// Says that `count` had been reached after `elapsed_seconds`. Without a change of the count it says nothing.
  void observe(int64_t count, double elapsed_seconds);
  /// Zero before the first item.
  double per_second() const { return seconds_ > 0 ? items_ / seconds_ : 0; }

 private:
  int64_t last_count_ = 0;
  double last_elapsed_ = 0;
  double items_ = 0;
  double seconds_ = 0;
};

}  // namespace accelerate::detail
