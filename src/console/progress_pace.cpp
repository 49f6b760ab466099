#include "console/progress_pace.h"

#include <algorithm>

namespace accelerate::detail {

int64_t next_stride(int64_t counted, double seconds) {
  constexpr double kTargetSeconds = 10e-6;
  constexpr double kLongest = 1e6;
  // It at most doubles: one quick update at the start must not buy a long silence.
  const double doubled = 2.0 * static_cast<double>(counted);
  const double fitting = seconds > 0 ? static_cast<double>(counted) * kTargetSeconds / seconds : doubled;
  return static_cast<int64_t>(std::clamp(std::min(fitting, doubled), 1.0, kLongest));
}

bool LineSchedule::due(double elapsed_seconds, int64_t count, std::optional<int64_t> total) {
  constexpr double kLeastSeconds = 10;
  constexpr double kMinute = 60;
  const double silence = elapsed_seconds - last_line_;
  const double longest_silence = std::max(std::min(elapsed_seconds / 2, kMinute), elapsed_seconds / 10);
  int64_t tenth = 0;
  if (total && *total > 0) tenth = static_cast<int64_t>(10.0 * static_cast<double>(count) / static_cast<double>(*total));
  if (silence < kLeastSeconds || count == total) return false;
  if (tenth <= last_tenth_ && silence < longest_silence) return false;
  last_line_ = elapsed_seconds;
  last_tenth_ = tenth;
  return true;
}

}  // namespace accelerate::detail
