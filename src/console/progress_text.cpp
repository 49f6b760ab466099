#include "console/progress_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <accelerate/core/format.h>
#include "console/text_columns.h"

namespace accelerate::detail {

namespace {

constexpr int kShortestBar = 5;

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::min(seconds, 1e9));
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60, rest = whole % 60;
  if (hours > 0) return accelerate::format("{}:{:02}:{:02}", hours, minutes, rest);
  return accelerate::format("{:02}:{:02}", minutes, rest);
}

std::string rate_text(double per_second, const std::string& unit) {
  if (per_second <= 0) return "?" + unit + "/s";
  const bool slow = per_second < 1;
  const double value = slow ? 1 / per_second : per_second;
  return accelerate::format("{:.{}f}{}/{}", value, value < 99.95 ? 1 : 0, slow ? "s" : unit, slow ? unit : "s");
}

std::string time_text(const ProgressSnapshot& snapshot) {
  const std::string elapsed = duration_text(snapshot.elapsed_seconds);
  if (!snapshot.total) return elapsed;
  const int64_t left = *snapshot.total - snapshot.count;
  if (left <= 0) return elapsed + "<00:00";
  if (snapshot.per_second <= 0) return elapsed + "<?";
  return elapsed + "<" + duration_text(std::round(static_cast<double>(left) / snapshot.per_second));
}

/// The part of `whole` that is done, never more than all of it.
double done_of(double whole, const ProgressSnapshot& snapshot) {
  if (*snapshot.total <= 0) return whole;
  // Multiplied first: 29 of 100 is 29 %, while 0.29 * 100 is a little less.
  return std::clamp(whole * static_cast<double>(snapshot.count) / static_cast<double>(*snapshot.total), 0.0, whole);
}

std::string head_text(const ProgressSnapshot& snapshot) {
  std::string head = snapshot.description.empty() ? "" : snapshot.description + ": ";
  // Rounded down: 100 % is shown only when all is done.
  if (snapshot.total) head += accelerate::format("{:3}%", static_cast<int>(done_of(100, snapshot)));
  return head;
}

std::string count_text(const ProgressSnapshot& snapshot) {
  if (!snapshot.total) return accelerate::format("{}{}", snapshot.count, snapshot.unit);
  return accelerate::format("{}/{}", snapshot.count, *snapshot.total);
}

/// What stands behind the bar, the longest form first.
std::array<std::string, 4> tail_texts(const ProgressSnapshot& snapshot) {
  const std::string count = count_text(snapshot), time = time_text(snapshot);
  const std::string rate = time + ", " + rate_text(snapshot.per_second, snapshot.unit);
  const std::string all = snapshot.postfix.empty() ? rate : rate + ", " + snapshot.postfix;
  return {count + " [" + all + "]", count + " [" + rate + "]", count + " [" + time + "]", count};
}

std::string blocks(const ProgressSnapshot& snapshot, int columns, bool unicode) {
  if (!unicode) {
    const auto full = static_cast<size_t>(done_of(columns, snapshot));
    return std::string(full, '#') + std::string(static_cast<size_t>(columns) - full, ' ');
  }
  static constexpr std::array<const char*, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<size_t>(done_of(columns * 8, snapshot));
  std::string bar;
  for (size_t i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kEighths[eighths % 8];
  return bar + std::string(static_cast<size_t>(columns) - (eighths + 7) / 8, ' ');
}

std::string joined(const std::string& head, const std::string& tail) {
  const bool space = !head.empty() && head.back() != ' ';
  return head + (space ? " " : "") + tail;
}

}  // namespace

std::string plain_line(const ProgressSnapshot& snapshot) {
  return fit_columns(joined(head_text(snapshot), tail_texts(snapshot).front()), std::numeric_limits<int>::max());
}

std::string bar_line(const ProgressSnapshot& snapshot, int columns, bool unicode) {
  const std::string head = head_text(snapshot);
  const auto tails = tail_texts(snapshot);
  const auto fits = [&](const std::string& tail) { return columns_of(joined(head, tail)) <= columns; };
  const auto tail = std::ranges::find_if(tails, fits);
  if (tail == tails.end()) {
    // Only the description can be that long: the numbers stay, it is cut.
    ProgressSnapshot shorter = snapshot;
    const int excess = columns_of(joined(head, tails.back())) - columns;
    shorter.description = fit_columns(snapshot.description, columns_of(snapshot.description) - excess);
    return fit_columns(joined(head_text(shorter), tails.back()), columns);
  }
  const int room = columns - columns_of(head) - columns_of(*tail) - 3;
  if (!snapshot.total || room < kShortestBar) return fit_columns(joined(head, *tail), columns);
  return fit_columns(head + "|" + blocks(snapshot, room, unicode) + "| " + *tail, columns);
}

void RateEstimate::observe(int64_t count, double elapsed_seconds) {
  const double seconds = elapsed_seconds - last_elapsed_;
  if (count == last_count_ || seconds <= 0) return;
  constexpr double kMemorySeconds = 10;
  constexpr double kLeastKept = 0.7;
  const double kept = std::max(kLeastKept, std::exp(-seconds / kMemorySeconds));
  items_ = items_ * kept + static_cast<double>(count - last_count_);
  seconds_ = seconds_ * kept + seconds;
  last_count_ = count;
  last_elapsed_ = elapsed_seconds;
}

}  // namespace accelerate::detail
