#include <accelerate/console/progress.h>

#include <limits>

#include <accelerate/core/error.h>
#include <accelerate/core/launch_environment.h>
#include "console/progress_line.h"

namespace accelerate {

using namespace detail;

ProgressBar::ProgressBar(ProgressOptions options) : counter_(std::make_unique<ProgressCounter>()) {
  if (options.total && *options.total < 0) {
    throw UsageError(
        accelerate::format("ProgressBar: the total is {}; give a number >= 0, or none if it is unknown", *options.total));
  }
  if (options.disable) {
    counter_->next_look = std::numeric_limits<int64_t>::max();
  } else {
    line_ = std::make_unique<ProgressLine>(std::move(options), *counter_);
  }
}

ProgressBar::~ProgressBar() = default;
ProgressBar::ProgressBar(ProgressBar&&) noexcept = default;

ProgressBar& ProgressBar::operator=(ProgressBar&& other) noexcept {
  line_ = std::move(other.line_);  // first: our own line closes here, and still reads our counter
  counter_ = std::move(other.counter_);
  return *this;
}

void ProgressBar::look() {
  if (line_) line_->look();
}

void ProgressBar::set_postfix(std::initializer_list<PostfixItem> items) {
  if (line_) line_->set_postfix(std::vector<PostfixItem>(items));
}

void ProgressBar::set_postfix_text(std::string_view text) {
  if (line_) line_->set_postfix(std::string(text));
}

void ProgressBar::set_description(std::string_view description) {
  if (line_) line_->set_description(description);
}

void ProgressBar::close() {
  if (line_) line_->close();
}

bool write_line(int file_descriptor, std::string_view text) { return Screen::of_process().write_line(file_descriptor, text); }

ProgressOptions detail::shown_once_per_machine(ProgressOptions options) {
  options.disable = options.disable || read_launch_environment().local_process_index != 0;
  return options;
}

void detail::throw_no_loop() { throw UsageError("progress: there is no bar yet; call bar() inside the loop over this range"); }

}  // namespace accelerate
