#include "console/progress_line.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <limits>

namespace accelerate::detail {

namespace {

constexpr double kSecondsBetweenRedraws = 0.1;

/// The first of these that is set decides, as it does for every other program.
bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string text(value);
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text.find("utf-8") != std::string::npos || text.find("utf8") != std::string::npos;
  }
  return false;
}

std::string item_text(const PostfixItem& item) {
  const bool real = std::holds_alternative<double>(item.value.value()) || std::holds_alternative<float>(item.value.value());
  return item.name + "=" + format_arguments(real ? "{:.3g}" : "{}", {&item.value, 1});
}

}  // namespace

double steady_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

ProgressLine::ProgressLine(ProgressOptions options, ProgressCounter& counter, double (*clock)())
    : counter_(counter),
      clock_(clock),
      start_(clock()),
      terminal_(is_terminal(options.file_descriptor)),
      unicode_(locale_is_utf8()),
      next_show_(kSecondsBetweenRedraws),
      options_(std::move(options)) {
  if (terminal_) Screen::of_process().add(*this, options_.file_descriptor);
}

void ProgressLine::look() {
  const std::unique_lock lock(look_mutex_, std::try_to_lock);
  if (!lock || closed_) return;  // another thread is already updating, and sees our count too
  const double elapsed = clock_() - start_;
  const int64_t count = counter_.count.load(std::memory_order_relaxed);
  counter_.next_look.store(count + next_stride(count - last_look_count_, elapsed - last_look_), std::memory_order_relaxed);
  last_look_ = elapsed;
  last_look_count_ = count;
  if (elapsed >= next_show_) show(elapsed);
}

void ProgressLine::show(double elapsed) {
  next_show_ = elapsed + kSecondsBetweenRedraws;
  if (terminal_) {
    Screen::of_process().redraw();
  } else if (schedule_.due(elapsed, last_look_count_, options_.total)) {
    Screen::of_process().write_line(options_.file_descriptor, plain_line(snapshot()));
  }
}

void ProgressLine::close() noexcept {
  try {
    close_line();
  } catch (...) {  // out of memory for a line of text: a destructor cannot report it
  }
}

void ProgressLine::close_line() {
  const std::lock_guard lock(look_mutex_);
  if (closed_) return;
  closed_ = true;
  counter_.next_look.store(std::numeric_limits<int64_t>::max(), std::memory_order_relaxed);
  {
    const std::lock_guard text_lock(text_mutex_);
    finished_ = true;
  }
  if (terminal_) {
    Screen::of_process().remove(*this, options_.leave);
  } else if (options_.leave) {
    Screen::of_process().write_line(options_.file_descriptor, plain_line(snapshot()));
  }
}

void ProgressLine::set_description(std::string_view description) {
  const std::lock_guard lock(text_mutex_);
  options_.description = description;
}

void ProgressLine::set_postfix(std::vector<PostfixItem> items) {
  const std::lock_guard lock(text_mutex_);
  postfix_ = std::move(items);
}

void ProgressLine::set_postfix(std::string text) {
  const std::lock_guard lock(text_mutex_);
  postfix_ = std::move(text);
}

std::string ProgressLine::text(int columns) { return bar_line(snapshot(), columns, unicode_); }

ProgressSnapshot ProgressLine::snapshot() {
  const std::lock_guard lock(text_mutex_);
  ProgressSnapshot now{.description = options_.description,
                       .count = counter_.count.load(std::memory_order_relaxed),
                       .total = options_.total,
                       .unit = options_.unit,
                       .elapsed_seconds = clock_() - start_};
  rate_.observe(now.count, now.elapsed_seconds);
  const bool average = finished_ && now.elapsed_seconds > 0;
  now.per_second = average ? static_cast<double>(now.count) / now.elapsed_seconds : rate_.per_second();
  if (const auto* text = std::get_if<std::string>(&postfix_)) {
    now.postfix = *text;
  } else {
    for (const PostfixItem& item : std::get<std::vector<PostfixItem>>(postfix_)) {
      now.postfix += (now.postfix.empty() ? "" : ", ") + item_text(item);
    }
  }
  return now;
}

}  // namespace accelerate::detail
