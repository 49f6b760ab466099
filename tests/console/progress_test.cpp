#include <accelerate/console/progress.h>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include <accelerate/core/error.h>
#include "console/progress_line.h"
#include "support/terminal.h"

namespace {

using accelerate::ProgressBar;
using accelerate::testing::LogFile;
using accelerate::testing::ScopedVariables;
using accelerate::testing::ScreenModel;
using accelerate::testing::Terminal;

double manual_seconds = 0;
double manual_clock() { return manual_seconds; }

bool starts_with(const std::string& text, const std::string& start) { return text.starts_with(start); }

/// `count` updates of a line that take `seconds` each, on the manual clock.
void pass(accelerate::detail::ProgressLine& line, accelerate::detail::ProgressCounter& counter, int64_t count, double seconds) {
  for (int64_t i = 0; i < count; ++i) {
    manual_seconds += seconds;
    if (++counter.count >= counter.next_look) line.look();
  }
}

size_t occurrences(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(ProgressLine, ATerminalIsRedrawnAtMostTenTimesASecond) {
  Terminal terminal(60);
  accelerate::detail::ProgressCounter counter;
  accelerate::detail::ProgressLine line({.total = 10000, .file_descriptor = terminal.fd()}, counter, manual_clock);
  terminal.read();
  pass(line, counter, 2000, 1e-3);
  EXPECT_NEAR(static_cast<double>(occurrences(terminal.read(), "\x1b[J")), 19, 1);
}

TEST(ProgressLine, ALoopThatSuddenlySlowsDownIsStillRedrawnWithinThreeTenthsOfASecond) {
  Terminal terminal(60);
  accelerate::detail::ProgressCounter counter;
  accelerate::detail::ProgressLine line({.file_descriptor = terminal.fd()}, counter, manual_clock);
  pass(line, counter, 200'000, 1e-6);
  terminal.read();
  pass(line, counter, 15, 20e-3);
  EXPECT_GE(occurrences(terminal.read(), "\x1b[J"), 1U);
}

TEST(ProgressLine, ALongLoopIntoALogWritesALineAtEveryTenth) {
  LogFile log;
  {
    accelerate::detail::ProgressCounter counter;
    accelerate::detail::ProgressLine line({.description = "d", .total = 100, .file_descriptor = log.fd()}, counter, manual_clock);
    pass(line, counter, 100, 4.0);
  }
  for (int tenth = 10; tenth <= 100; tenth += 10) {
    const std::string part = "% " + std::to_string(tenth) + "/100 [";
    EXPECT_EQ(occurrences(log.text(), part), 1U) << part << " in\n" << log.text();
  }
  EXPECT_NE(log.text().find("d:  50% 50/100 [03:20<03:20, 4.0s/it]\n"), std::string::npos) << log.text();
  EXPECT_TRUE(log.text().ends_with("d: 100% 100/100 [06:40<00:00, 4.0s/it]\n")) << log.text();
}

TEST(Progress, AShortLoopIntoALogWritesItsLastStateAndNothingElse) {
  LogFile log;
  for (int64_t step : accelerate::progress(100, {.description = "training", .file_descriptor = log.fd()})) (void)step;
  EXPECT_EQ(occurrences(log.text(), "\n"), 1U);
  EXPECT_TRUE(starts_with(log.text(), "training: 100% 100/100 [00:00<00:00, ")) << log.text();
  EXPECT_EQ(log.text().find('\x1b'), std::string::npos);
}

TEST(Progress, ABarThatLeavesNothingWritesNothingIntoALog) {
  LogFile log;
  for (int64_t step : accelerate::progress(100, {.leave = false, .file_descriptor = log.fd()})) (void)step;
  EXPECT_EQ(log.text(), "");
}

TEST(Progress, ADumbTerminalGetsPlainLines) {
  Terminal terminal(60);
  const ScopedVariables dumb{std::map<std::string, const char*>{{"TERM", "dumb"}}};
  for (int64_t step : accelerate::progress(3, {.file_descriptor = terminal.fd()})) (void)step;
  EXPECT_EQ(terminal.read().find('\x1b'), std::string::npos);
}

TEST(Progress, ADisabledBarCountsAndPrintsNothing) {
  Terminal terminal(60);
  ProgressBar bar({.total = 10, .disable = true, .file_descriptor = terminal.fd()});
  for (int i = 0; i < 10; ++i) bar.update();
  bar.set_postfix({{"loss", 0.5}});
  bar.set_description("d");
  bar.close();
  EXPECT_EQ(bar.count(), 10);
  EXPECT_EQ(terminal.read(), "");
}

TEST(Progress, OnlyTheFirstProcessOfAMachineShowsTheFreeFunctionsBar) {
  for (const auto& [local_rank, shown] : {std::pair{"0", true}, std::pair{"1", false}}) {
    const ScopedVariables launched({{"RANK", local_rank},
                                    {"LOCAL_RANK", local_rank},
                                    {"WORLD_SIZE", "2"},
                                    {"LOCAL_WORLD_SIZE", "2"},
                                    {"MASTER_ADDR", "127.0.0.1"},
                                    {"MASTER_PORT", "29500"}});
    LogFile log;
    int64_t sum = 0;
    for (int64_t step : accelerate::progress(10, {.file_descriptor = log.fd()})) sum += step;
    EXPECT_EQ(sum, 45);
    EXPECT_EQ(!log.text().empty(), shown);
  }
}

TEST(Progress, ACountYieldsItsNumbersAndANegativeOneNone) {
  std::vector<int64_t> seen;
  LogFile log;
  for (auto step : accelerate::progress(4, {.file_descriptor = log.fd()})) seen.push_back(step);
  for (auto step : accelerate::progress(-3, {.file_descriptor = log.fd()})) seen.push_back(step);
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST(Progress, AnLvalueRangeIsReferredToAndItsElementsCanBeChanged) {
  LogFile log;
  std::vector<int> numbers = {1, 2, 3};
  for (int& number : accelerate::progress(numbers, {.file_descriptor = log.fd()})) number *= 10;
  EXPECT_EQ(numbers, (std::vector{10, 20, 30}));
  EXPECT_NE(log.text().find("3/3"), std::string::npos);
  const int array[] = {4, 5};
  int sum = 0;
  for (const int& number : accelerate::progress(array, {.file_descriptor = log.fd()})) sum += number;
  EXPECT_EQ(sum, 9);
}

TEST(Progress, AnRvalueRangeIsKept) {
  LogFile log;
  auto kept = accelerate::progress(std::vector<std::unique_ptr<int>>(3), {.file_descriptor = log.fd()});
  for (auto& pointer : kept) pointer = std::make_unique<int>(7);
  for (auto& pointer : kept) EXPECT_EQ(*pointer, 7);
  EXPECT_EQ(occurrences(log.text(), "3/3"), 2U);  // each loop has a bar of its own
}

/// Counts down, with an end of another type, no size, and elements that are values.
struct Countdown {
  struct Iterator {
    int left;
    std::string operator*() const { return std::to_string(left); }
    void operator++() { --left; }
    bool operator!=(std::default_sentinel_t) const { return left > 0; }
  };
  Iterator begin() { return {from}; }
  std::default_sentinel_t end() { return {}; }
  int from;
};

TEST(Progress, ARangeWithoutASizeShowsCountAndRateOnly) {
  LogFile log;
  std::string seen;
  for (const std::string& text : accelerate::progress(Countdown{3}, {.unit = "s", .file_descriptor = log.fd()})) seen += text;
  EXPECT_EQ(seen, "321");
  EXPECT_TRUE(starts_with(log.text(), "3s [00:00, ")) << log.text();
}

TEST(Progress, TheBarIsClosedWhenTheLoopHasSeenTheLastElement) {
  LogFile log;
  auto steps = accelerate::progress(2, {.file_descriptor = log.fd()});
  EXPECT_THROW(steps.bar(), accelerate::UsageError);
  for (int64_t step : steps) steps.bar().set_postfix({{"step", step}, {"loss", 1.0 / 3}, {"lr", 1e-5f}, {"name", "x"}});
  EXPECT_NE(log.text().find("2/2 [00:00<00:00, "), std::string::npos) << log.text();
  EXPECT_NE(log.text().find(", step=1, loss=0.333, lr=1e-05, name=x]\n"), std::string::npos) << log.text();
}

TEST(Progress, AnExceptionThatLeavesTheLoopShowsTheStateAndLeavesTheCursorOnALineOfItsOwn) {
  Terminal terminal(60);
  EXPECT_THROW(
      {
        for (int64_t outer : accelerate::progress(3, {.description = "outer", .file_descriptor = terminal.fd()})) {
          for (int64_t step : accelerate::progress(5, {.description = "inner", .file_descriptor = terminal.fd()})) {
            if (outer == 1 && step == 2) throw std::runtime_error("the user's");
          }
        }
      },
      std::runtime_error);
  ScreenModel& screen = terminal.screen();
  EXPECT_TRUE(starts_with(screen.line(0), "inner: 100%|")) << screen.line(0);
  EXPECT_TRUE(starts_with(screen.line(1), "inner:  40%|")) << screen.line(1);
  EXPECT_TRUE(starts_with(screen.line(2), "outer:  33%|")) << screen.line(2);
  EXPECT_EQ(screen.line(3), "");
  EXPECT_EQ(screen.cursor_row(), 3U);
  EXPECT_EQ(screen.cursor_column(), 0);
}

TEST(Progress, AnExceptionThatNobodyCatchesIsReportedBelowTheBars) {
  Terminal terminal(60);
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    ::dup2(terminal.fd(), STDERR_FILENO);
    ProgressBar outer({.description = "outer", .total = 3}), inner({.description = "inner", .total = 3});
    std::thread([] { throw std::runtime_error("nobody catches this"); }).join();
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WTERMSIG(status), SIGABRT);
  EXPECT_TRUE(starts_with(terminal.screen().line(1), "inner:   0%|"));
  EXPECT_TRUE(starts_with(terminal.screen().line(2), "terminate called after throwing")) << terminal.screen().line(2);
}

TEST(ProgressScreen, OneBarIsRedrawnInPlaceAndLeftComplete) {
  Terminal terminal(80);
  {
    ProgressBar bar({.description = "by hand", .total = 100, .file_descriptor = terminal.fd()});
    EXPECT_TRUE(starts_with(terminal.screen().line(0), "by hand:   0%|   ")) << terminal.screen().line(0);
    for (int i = 0; i < 10; ++i) bar.update(10);
  }
  EXPECT_TRUE(starts_with(terminal.screen().line(0), "by hand: 100%|####")) << terminal.screen().line(0);
  EXPECT_NE(terminal.screen().line(0).find("####| 100/100 [00:00<00:00, "), std::string::npos);
  EXPECT_EQ(terminal.screen().cursor_row(), 1U);
}

TEST(ProgressScreen, BlocksAreDrawnWhereTheLocaleIsUtf8) {
  for (const auto& [locale, block] : {std::pair{"C", "#"}, {"de_DE.UTF-8", "█"}, {"C.utf8", "█"}}) {
    Terminal terminal(60, 24, locale);
    { ProgressBar({.total = 1, .file_descriptor = terminal.fd()}).update(); }
    EXPECT_NE(terminal.screen().line(0).find(std::string("100%|") + block), std::string::npos) << terminal.screen().line(0);
  }
}

TEST(ProgressScreen, AnInnerBarIsBelowTheOuterOneAndBothStayReadable) {
  Terminal terminal(60);
  ProgressBar outer({.description = "epochs", .total = 2, .file_descriptor = terminal.fd()});
  for (int epoch = 0; epoch < 2; ++epoch) {
    ProgressBar inner({.description = "steps", .total = 5, .leave = false, .file_descriptor = terminal.fd()});
    inner.update(2);
    accelerate::write_line(terminal.fd(), "loss");
    const size_t row = terminal.screen().cursor_row();
    EXPECT_EQ(row, static_cast<size_t>(epoch) + 1);
    EXPECT_EQ(terminal.screen().line(row - 1), "loss");
    EXPECT_TRUE(starts_with(terminal.screen().line(row), epoch == 0 ? "epochs:   0%|" : "epochs:  50%|"));
    EXPECT_TRUE(starts_with(terminal.screen().line(row + 1), "steps:  40%|####"));
    EXPECT_EQ(terminal.screen().line(row + 2), "");
    inner.close();
    EXPECT_EQ(terminal.screen().line(row + 1), "");
    outer.update();
  }
}

TEST(ProgressScreen, FinishedInnerBarsStayAboveTheOuterOne) {
  Terminal terminal(60);
  for (int64_t epoch : accelerate::progress(2, {.description = "epochs", .file_descriptor = terminal.fd()})) {
    const std::string name = "epoch " + std::to_string(epoch);
    for (int64_t step : accelerate::progress(5, {.description = name, .file_descriptor = terminal.fd()})) (void)step;
  }
  EXPECT_TRUE(starts_with(terminal.screen().line(0), "epoch 0: 100%|"));
  EXPECT_TRUE(starts_with(terminal.screen().line(1), "epoch 1: 100%|"));
  EXPECT_TRUE(starts_with(terminal.screen().line(2), "epochs: 100%|"));
  EXPECT_EQ(terminal.screen().line(3), "");
}

TEST(ProgressScreen, ABarNeverWrapsAndFollowsTheWidthOfTheTerminal) {
  Terminal terminal(40);
  ProgressBar bar({.description = "a description that is long", .total = 1000000, .file_descriptor = terminal.fd()});
  bar.set_postfix("a postfix that is long too");
  bar.update(123456);
  accelerate::write_line(terminal.fd(), "narrow");
  EXPECT_EQ(terminal.screen().line(1), "a description that:  12% 123456/1000000") << "the line is cut, its numbers are not";
  EXPECT_FALSE(terminal.screen().wrapped());
  terminal.resize(25);
  accelerate::write_line(terminal.fd(), "narrower");
  EXPECT_EQ(terminal.screen().line(2), "a d:  12% 123456/1000000");
}

TEST(ProgressScreen, MoreBarsThanTheTerminalHasRowsAreNotDrawn) {
  Terminal terminal(60, 4);
  std::list<ProgressBar> bars;
  for (const char* name : {"0", "1", "2", "3", "4", "5"}) {
    bars.push_back(ProgressBar({.description = name, .total = 1, .file_descriptor = terminal.fd()}));
  }
  EXPECT_TRUE(starts_with(terminal.screen().line(0), "0:   0%|"));
  EXPECT_TRUE(starts_with(terminal.screen().line(2), "2:   0%|"));
  EXPECT_EQ(terminal.screen().line(3), "");
}

TEST(ProgressScreen, DescriptionAndPostfixAreShownFromTheNextRedrawOn) {
  Terminal terminal(80);
  ProgressBar bar({.description = "before", .file_descriptor = terminal.fd()});
  bar.update();
  bar.set_description("after");
  bar.set_postfix({{"loss", 0.53124}, {"epoch", 3}});
  accelerate::write_line(terminal.fd(), "text\n");
  EXPECT_EQ(terminal.screen().line(0), "text");
  EXPECT_TRUE(starts_with(terminal.screen().line(1), "after: 1it [00:00, ")) << terminal.screen().line(1);
  EXPECT_TRUE(terminal.screen().line(1).ends_with("it/s, loss=0.531, epoch=3]")) << terminal.screen().line(1);
}

TEST(ProgressScreen, TextThatGoesIntoAFileLeavesTheBarsAlone) {
  Terminal terminal(60);
  LogFile log;
  ProgressBar bar({.total = 1, .file_descriptor = terminal.fd()});
  terminal.read();
  accelerate::write_line(log.fd(), "text");
  EXPECT_EQ(log.text(), "text\n");
  EXPECT_EQ(terminal.read(), "");
}

TEST(ProgressBar, AMovedBarGoesOnWhereItWas) {
  LogFile log;
  {
    ProgressBar first({.description = "first", .total = 3, .file_descriptor = log.fd()});
    first.update();
    ProgressBar second = std::move(first);
    second.update();
    second = ProgressBar({.description = "second", .file_descriptor = log.fd()});
    EXPECT_TRUE(starts_with(log.text(), "first:  66% 2/3 ")) << log.text();
    second.update(5);
    EXPECT_EQ(second.count(), 5);
  }
  EXPECT_EQ(occurrences(log.text(), "\n"), 2U);
}

TEST(ProgressBar, ANegativeTotalIsAUsageErrorAlsoWhenDisabled) {
  EXPECT_THROW(ProgressBar({.total = -1, .disable = true}), accelerate::UsageError);
}

TEST(ProgressBar, UpdatesFromSeveralThreadsAddUpAndTheScreenStaysWhole) {
  Terminal terminal(80);
  constexpr int kThreads = 4, kUpdates = 50'000;
  ProgressBar bar({.description = "shared", .total = kThreads * kUpdates, .file_descriptor = terminal.fd()});
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      ProgressBar own({.description = "own", .leave = false, .file_descriptor = terminal.fd()});
      for (int i = 0; i < kUpdates; ++i) {
        bar.update();
        own.update();
        if (i % 10'000 == 0) bar.set_postfix({{"thread", t}});
        if (i % 10'000 == 5'000) accelerate::write_line(terminal.fd(), "line");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bar.count(), kThreads * kUpdates);
  bar.close();
  for (size_t row = 0; row < kThreads * 5; ++row) EXPECT_EQ(terminal.screen().line(row), "line");
  EXPECT_TRUE(starts_with(terminal.screen().line(kThreads * 5), "shared: 100%|")) << terminal.screen().line(kThreads * 5);
  EXPECT_EQ(terminal.screen().line(kThreads * 5 + 1), "");
}

TEST(WriteLine, ComesAfterWhatStandardOutputStillBuffers) {
  LogFile log;
  std::fflush(stdout);
  const int saved = ::dup(STDOUT_FILENO);
  ::dup2(log.fd(), STDOUT_FILENO);
  std::fputs("first\n", stdout);
  accelerate::write_line(STDOUT_FILENO, "second");
  ::dup2(saved, STDOUT_FILENO);
  ::close(saved);
  EXPECT_EQ(log.text(), "first\nsecond\n");
}

TEST(WriteLine, SaysWhenItCouldNotWrite) { EXPECT_FALSE(accelerate::write_line(-1, "lost")); }

}  // namespace
