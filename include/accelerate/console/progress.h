#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <accelerate/core/format.h>

namespace accelerate {

/// How a progress bar looks and where it goes.
struct ProgressOptions {
  /// Stands before the bar.
  std::string description = {};
  /// The expected number of items. Without it there is no percentage, no bar and no remaining time. Taken from the range if
  /// known.
  std::optional<int64_t> total = {};
  /// Count without showing anything, for processes that should not print.
  bool disable = false;
  /// What is counted: "it" gives "it/s".
  std::string unit = "it";
  /// Keep the last state on the screen, or in the log, when the bar is closed.
  bool leave = true;
  /// Where it is shown: standard error by default, so that standard output stays the program's own.
  int file_descriptor = 2;
};

/// One value shown behind the rate, as in `loss=0.53`.
struct PostfixItem {
  std::string name;
  FormatArgument value;
};

namespace detail {

/// The part of a bar that an update touches: the count, and the count at which to read the clock again.
struct ProgressCounter {
  std::atomic<int64_t> count = 0;
  std::atomic<int64_t> next_look = 1;
};

class ProgressLine;

/// `options`, disabled unless this is local rank 0 in the launcher's environment.
ProgressOptions shown_once_per_machine(ProgressOptions options);

[[noreturn]] void throw_no_loop();

}  // namespace detail

/// A manual progress bar. On a terminal it is one line that is redrawn in place, at most ten times a second; elsewhere it is
/// a few plain lines. Bars made while others are shown are drawn below them. Any thread may call any member.
///
///     ProgressBar bar({.description = "training", .total = 100});
///     for (...) { bar.set_postfix({{"loss", loss}}); bar.update(); }
class ProgressBar {
 public:
  /// Shows the bar at once on a terminal. A negative total is a UsageError.
  explicit ProgressBar(ProgressOptions options = {});
  /// Closes. Never throws.
  ~ProgressBar();
  /// A bar that was moved from may only be destroyed or assigned to.
  ProgressBar(ProgressBar&&) noexcept;
  ProgressBar& operator=(ProgressBar&&) noexcept;

  /// Counts `n` more. Costs an addition and a comparison; the clock is read about every ten microseconds.
  void update(int64_t n = 1) {
    const int64_t count = counter_->count.fetch_add(n, std::memory_order_relaxed) + n;
    if (count >= counter_->next_look.load(std::memory_order_relaxed)) look();
  }

  /// Shows these behind the rate from the next redraw on: `bar.set_postfix({{"loss", 0.53}, {"epoch", 3}})`.
  void set_postfix(std::initializer_list<PostfixItem> items);

  /// Shows this text behind the rate from the next redraw on.
  template <std::convertible_to<std::string_view> Text>
  void set_postfix(const Text& text) {
    set_postfix_text(text);
  }

  /// Replaces the description from the next redraw on.
  void set_description(std::string_view description);

  /// Shows the last state and closes the bar. Later updates count but show nothing.
  void close();

  /// The sum of all updates.
  int64_t count() const { return counter_->count.load(std::memory_order_relaxed); }

 private:
  void look();
  void set_postfix_text(std::string_view text);

  std::unique_ptr<detail::ProgressCounter> counter_;
  std::unique_ptr<detail::ProgressLine> line_;  // none where the bar is disabled
};

/// Writes `text` as a line of its own, in one write: bars are taken off the screen, and drawn again below it. What standard
/// output still buffers goes first when `file_descriptor` is 1. False when the bytes could not be written.
bool write_line(int file_descriptor, std::string_view text);

/// What a range-based for takes.
template <typename T>
concept Iterable = requires(T& range) {
  *std::begin(range);
  std::begin(range) != std::end(range);
};

/// The numbers 0, 1, ... count - 1; none when `count` is negative.
struct CountRange {
  /// Points at a number that it holds itself.
  struct Iterator {
    int64_t value;
    int64_t operator*() const { return value; }
    Iterator& operator++() { return ++value, *this; }
    bool operator==(const Iterator&) const = default;
  };
  Iterator begin() const { return {0}; }
  Iterator end() const { return {size()}; }
  int64_t size() const { return count > 0 ? count : 0; }

  int64_t count = 0;
};

/// A range whose loop is shown by a bar. `Range` is an lvalue reference for a range that lives elsewhere, else the range itself.
/// Every loop over it has a bar of its own, which is closed when the loop has seen the last element or this object ends.
template <Iterable Range>
class ProgressRange {
 public:
  /// Shows a bar unless `options` disable it: the caller decides which process shows it.
  ProgressRange(Range&& range, ProgressOptions options) : range_(std::forward<Range>(range)), options_(std::move(options)) {
    if (options_.total) return;
    if constexpr (requires { options_.total = range_.known_size(); }) {
      options_.total = range_.known_size();  // a loader may not know how long it is
    } else if constexpr (requires { static_cast<int64_t>(std::size(range_)); }) {
      options_.total = static_cast<int64_t>(std::size(range_));
    }
  }

  /// The end of the range.
  struct End {
    decltype(std::end(std::declval<Range&>())) inner;
  };

  /// Walks the range and counts what has been done.
  struct Iterator {
    decltype(auto) operator*() { return *inner; }
    Iterator& operator++() {
      ++inner;
      bar->update();
      return *this;
    }
    bool operator!=(const End& end) {
      const bool more = inner != end.inner;
      if (!more) bar->close();
      return more;
    }

    decltype(std::begin(std::declval<Range&>())) inner;
    ProgressBar* bar;
  };

  /// Begins a loop and its bar.
  Iterator begin() {
    bar_.emplace(options_);
    return {std::begin(range_), &*bar_};
  }
  End end() { return {std::end(range_)}; }

  /// The bar of the running loop, for a postfix. A UsageError before the first loop.
  ProgressBar& bar() {
    if (!bar_) detail::throw_no_loop();
    return *bar_;
  }

 private:
  Range range_;
  ProgressOptions options_;
  std::optional<ProgressBar> bar_;
};

/// `for (int64_t step : progress(100, {.description = "training"}))`: counts from 0, with a bar on one process per node.
[[nodiscard]] inline ProgressRange<CountRange> progress(int64_t count, ProgressOptions options = {}) {
  return {CountRange{count}, detail::shown_once_per_machine(std::move(options))};
}

/// `for (auto& batch : progress(batches))`: the range's own elements. An lvalue is referred to, an rvalue is kept.
template <Iterable Range>
[[nodiscard]] ProgressRange<Range> progress(Range&& range, ProgressOptions options = {}) {
  return {std::forward<Range>(range), detail::shown_once_per_machine(std::move(options))};
}

}  // namespace accelerate
