#pragma once

#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include <accelerate/console/progress.h>
#include "console/progress_pace.h"
#include "console/progress_text.h"
#include "console/screen.h"

namespace accelerate::detail {

/// Seconds of a monotonic clock.
double steady_seconds();

/// The visible half of a ProgressBar: decides when to show the count, and how.
class ProgressLine final : public ScreenRow {
 public:
  /// `counter` outlives the line. Another clock serves tests.
  ProgressLine(ProgressOptions options, ProgressCounter& counter, double (*clock)() = steady_seconds);
  ~ProgressLine() { close(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Called when the count has reached `next_look`: reads the clock, shows what is due, and says when to look again.
  void look();
  void close() noexcept;

  void set_description(std::string_view description);
  void set_postfix(std::vector<PostfixItem> items);
  void set_postfix(std::string text);

  std::string text(int columns) override;

 private:
  ProgressSnapshot snapshot();
  void show(double elapsed);
  void close_line();

  ProgressCounter& counter_;
  double (*const clock_)();
  const double start_;
  const bool terminal_;
  const bool unicode_;

  // Two locks, because the screen asks for our text while another bar's thread holds it: `look_mutex_` is taken before the
  // screen's, `text_mutex_` after it.
  std::mutex look_mutex_;
  double last_look_ = 0;
  int64_t last_look_count_ = 0;
  double next_show_;
  LineSchedule schedule_;
  bool closed_ = false;

  std::mutex text_mutex_;
  ProgressOptions options_;
  std::variant<std::string, std::vector<PostfixItem>> postfix_;
  RateEstimate rate_;
  bool finished_ = false;
};

}  // namespace accelerate::detail
