#include "console/progress_text.h"

#include <gtest/gtest.h>
#include <wchar.h>

#include <algorithm>
#include <vector>

#include "console/progress_pace.h"
#include "console/text_columns.h"

namespace {

using accelerate::detail::bar_line;
using accelerate::detail::plain_line;
using accelerate::detail::ProgressSnapshot;

const ProgressSnapshot kTraining{
    .description = "training", .count = 40, .total = 100, .elapsed_seconds = 12, .per_second = 40.0 / 12, .postfix = "loss=0.5"};

TEST(ProgressText, ALogLineSaysAllAndHasNoBar) {
  EXPECT_EQ(plain_line(kTraining), "training:  40% 40/100 [00:12<00:18, 3.3it/s, loss=0.5]");
  EXPECT_EQ(plain_line({.count = 7, .unit = "B", .elapsed_seconds = 3725, .per_second = 0.4}), "7B [1:02:05, 2.5s/B]");
  EXPECT_EQ(plain_line({.description = "a\nb", .total = 5}), "a b:   0% 0/5 [00:00<?, ?it/s]");
}

TEST(ProgressText, TheBarFillsWhatTheTextLeaves) {
  EXPECT_EQ(bar_line(kTraining, 69, false), "training:  40%|#####        | 40/100 [00:12<00:18, 3.3it/s, loss=0.5]");
}

TEST(ProgressText, UnicodeBarsAreDrawnInEighthsOfAColumn) {
  ProgressSnapshot snapshot{.count = 33, .total = 80, .elapsed_seconds = 1, .per_second = 33};
  EXPECT_EQ(bar_line(snapshot, 46, true), " 41%|████▏     | 33/80 [00:01<00:01, 33.0it/s]");
  snapshot.count = 80;
  EXPECT_EQ(bar_line(snapshot, 46, true), "100%|██████████| 80/80 [00:01<00:00, 33.0it/s]");
}

TEST(ProgressText, ANarrowPlaceLosesBarThenPostfixThenRateThenTimesThenDescription) {
  EXPECT_EQ(bar_line(kTraining, 60, false), "training:  40% 40/100 [00:12<00:18, 3.3it/s, loss=0.5]");
  EXPECT_EQ(bar_line(kTraining, 46, false), "training:  40% 40/100 [00:12<00:18, 3.3it/s]");
  EXPECT_EQ(bar_line(kTraining, 39, false), "training:  40% 40/100 [00:12<00:18]");
  EXPECT_EQ(bar_line(kTraining, 30, false), "training:  40%|##     | 40/100");
  EXPECT_EQ(bar_line(kTraining, 20, false), "trainin:  40% 40/100");
  EXPECT_EQ(bar_line(kTraining, 4, false), " 40%");
}

TEST(ProgressText, NoWidthIsEverExceeded) {
  ProgressSnapshot snapshot = kTraining;
  for (std::string description : {"训练", "épreuve", "e\u0301", "🚀 go", "\xff\xfe", "tab\tbed", ""}) {
    snapshot.description = description;
    for (int columns = 1; columns < 120; ++columns) {
      EXPECT_LE(accelerate::detail::columns_of(bar_line(snapshot, columns, true)), columns) << description;
    }
  }
}

TEST(ProgressText, APercentageIsRoundedDownAndNeverAboveHundred) {
  for (int64_t count = 0; count <= 100; ++count) {
    EXPECT_EQ(std::stoll(plain_line({.count = count, .total = 100})), count);
  }
  EXPECT_TRUE(plain_line({.count = 99999, .total = 100000}).starts_with(" 99%"));
  EXPECT_TRUE(plain_line({.count = 120, .total = 100}).starts_with("100% 120/100"));
  EXPECT_TRUE(plain_line({.count = 0, .total = 0}).starts_with("100% 0/0"));
}

TEST(ProgressText, WideAndBrokenCharactersTakeTheColumnsTheyTake) {
  using accelerate::detail::columns_of, accelerate::detail::fit_columns;
  EXPECT_EQ(columns_of("abc"), 3);
  EXPECT_EQ(columns_of("训练"), 4);
  EXPECT_EQ(columns_of("e\u0301"), 1);
  EXPECT_EQ(columns_of("✅⌚"), 4);
  EXPECT_EQ(columns_of("ก\u0e31ב\u05b0"), 2) << "marks of Thai and Hebrew take none";
  EXPECT_EQ(columns_of("\ue0b0\u0378"), 2) << "private and unknown characters count as ordinary ones";
  EXPECT_EQ(::wcwidth(U'训'), -1) << "the program's locale is as it was";
  EXPECT_EQ(fit_columns("训练", 3), "训");
  EXPECT_EQ(fit_columns("a\x1b[2Jb\xe8", 9), "a [2Jb?");
}

TEST(RateEstimate, FollowsALoopThatChangesItsSpeed) {
  accelerate::detail::RateEstimate rate;
  EXPECT_EQ(rate.per_second(), 0);
  double now = 0;
  int64_t count = 0;
  for (int i = 0; i < 600; ++i) rate.observe(count += 100, now += 0.1);
  EXPECT_NEAR(rate.per_second(), 1000, 1e-6);
  for (int i = 0; i < 600; ++i) rate.observe(count += 1, now += 0.1);
  EXPECT_NEAR(rate.per_second(), 10, 5);
  for (int i = 0; i < 20; ++i) rate.observe(count += 1, now += 50);
  EXPECT_NEAR(rate.per_second(), 0.02, 1e-3);
}

TEST(ProgressPace, TheClockIsReadAboutEveryTenMicroseconds) {
  using accelerate::detail::next_stride;
  int64_t stride = 1;
  for (int i = 0; i < 20; ++i) stride = next_stride(stride, static_cast<double>(stride) * 1e-7);
  EXPECT_NEAR(static_cast<double>(stride), 100, 1);
  EXPECT_EQ(next_stride(100, 1.0), 1);
  EXPECT_EQ(next_stride(8, 1e-9), 16);
  EXPECT_EQ(next_stride(0, 0), 1);
}

TEST(ProgressPace, ALogGetsALineAtEveryTenthButNeverTwoInTenSeconds) {
  std::vector<int64_t> lines;
  accelerate::detail::LineSchedule schedule;
  for (int64_t second = 1; second < 1000; ++second) {
    if (schedule.due(static_cast<double>(second), second, 1000)) lines.push_back(second);
  }
  for (int64_t tenth = 100; tenth < 1000; tenth += 100) EXPECT_EQ(std::ranges::count(lines, tenth), 1) << tenth;
  EXPECT_EQ(lines.front(), 10);
  EXPECT_LT(lines.size(), 25U);
  for (size_t i = 1; i < lines.size(); ++i) EXPECT_GE(lines[i] - lines[i - 1], 10);
}

TEST(ProgressPace, ADayGivesFewerThanAHundredLinesAndNoLongSilence) {
  accelerate::detail::LineSchedule schedule;
  double last = 0;
  int lines = 0;
  for (double second = 1; second < 86400; ++second) {
    if (!schedule.due(second, static_cast<int64_t>(second), {})) continue;
    EXPECT_LE(second - last, std::max(60.0, second / 10 + 1));
    last = second;
    ++lines;
  }
  EXPECT_GT(lines, 50);
  EXPECT_LT(lines, 100);
}

}  // namespace
