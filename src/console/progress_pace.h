#pragma once

#include <cstdint>
#include <optional>

namespace accelerate::detail {

/// How much may be counted before the clock is read again, given that the last `counted` took `seconds`. Aims at ten
/// microseconds: reading it then costs well under a percent, and a loop that suddenly becomes a thousand times slower is
/// noticed within hundredths of a second.
int64_t next_stride(int64_t counted, double seconds);

/// When a log gets another line. Never within ten seconds of the last; then at every tenth of the total, and as a sign of life:
/// after 10, 20 and 40 seconds, every minute, and in the end whenever a tenth of the time so far has passed. Five minutes give
/// a dozen lines, a day some seventy.
class LineSchedule {
 public:
  /// True when a line is due now; it then counts as written. The complete state is not: closing the bar shows it.
  bool due(double elapsed_seconds, int64_t count, std::optional<int64_t> total);

 private:
  double last_line_ = 0;
  int64_t last_tenth_ = 0;
};

}  // namespace accelerate::detail
