#include "output/console_writer.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "console/screen.h"
#include "console/text_columns.h"
#include "output/rank_terminal.h"

namespace accelerate::detail {
namespace {

constexpr size_t kMostQueued = 1 << 20;
constexpr size_t kMostRemembered = 16 * 1024;  // of a line without an end

winsize window_of(int file_descriptor) {
  winsize size = {};
  if (::ioctl(file_descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
    size.ws_row = 24;
    size.ws_col = 80;
  }
  return size;
}

}  // namespace

ConsoleWriter::ConsoleWriter(int file_descriptor, std::string name)
    : file_descriptor_(file_descriptor),
      name_(std::move(name)),
      is_terminal_(detail::is_terminal(file_descriptor)),
      destination_(file_descriptor) {}

int ConsoleWriter::columns() const { return window_of(file_descriptor_).ws_col; }

int ConsoleWriter::rows() const { return window_of(file_descriptor_).ws_row; }

void ConsoleWriter::write(int writer, std::string_view prefix, std::string_view text) {
  if (text.empty()) return;
  bool continues = open_line_ == writer;
  if (open_line_ && !continues) {
    lines_ += '\n';
    remember("\n");
  }
  remember(text);
  open_line_ = text.back() == '\n' ? std::nullopt : std::optional<int>(writer);
  if (prefix.empty() && !is_terminal_) {
    lines_ += text;
  } else {
    while (!text.empty()) {
      const size_t newline = text.find('\n');
      if (!std::exchange(continues, false)) lines_ += prefix;
      lines_ += text.substr(0, newline);
      if (newline == std::string_view::npos) break;
      lines_ += '\n';
      text.remove_prefix(newline + 1);
    }
  }
  if (!is_terminal_) {
    destination_.put(lines_);
    lines_.clear();
  }
}

void ConsoleWriter::remember(std::string_view text) {
  const size_t end = text.rfind('\n') + 1;  // 0: there is none
  if (end > 0 && !open_text_.empty()) {
    const size_t first = text.find('\n') + 1;
    written_.add(open_text_.append(text.substr(0, first)));
    written_.add(text.substr(first, end - first));
  } else {
    written_.add(text.substr(0, end));
  }
  if (end > 0) open_text_.clear();
  if (open_text_.size() < kMostRemembered) open_text_ += text.substr(end);
}

void ConsoleWriter::show(int writer, std::vector<std::string> rows) {
  std::vector<std::string>& shown = live_[writer];
  if (shown == rows) return;
  shown = std::move(rows);
  changed_ = true;
}

void ConsoleWriter::serve() {
  destination_.write_some();
  // Rows are drawn when the terminal has taken all that was sent: on a slow one, what lies between is left out.
  if (destination_.queued() > 0 || (lines_.empty() && !changed_)) return;
  std::string bytes;
  if (!lines_.empty() && drawn_) bytes = "\r\x1b[J";
  bytes += lines_;
  lines_.clear();
  destination_.put(bytes + draw());
  destination_.write_some();
}

// As in core/screen.cpp: drawn over what is there, since what is erased first flickers, and the cursor rests behind the first
// row.
std::string ConsoleWriter::draw() {
  changed_ = false;
  std::vector<std::string> rows;
  for (const auto& [writer, texts] : live_) rows.insert(rows.end(), texts.begin(), texts.end());
  rows.resize(std::min(rows.size(), static_cast<size_t>(std::max(1, this->rows() - 1))));
  std::string bytes = drawn_ || !rows.empty() ? "\r" : "";
  for (size_t i = 0; i < rows.size(); ++i) bytes += rows[i] + (i + 1 < rows.size() ? "\x1b[K\n" : "\x1b[J");
  if (rows.empty() && drawn_) bytes += "\x1b[J";
  if (rows.size() > 1) {
    bytes += "\x1b[" + std::to_string(rows.size() - 1) + "A\r";
    const int first_columns = columns_of(plain_text(rows.front()));
    if (first_columns > 0) bytes += "\x1b[" + std::to_string(first_columns) + "C";
  }
  drawn_ = !rows.empty();
  return bytes;
}

void ConsoleWriter::clear_rows() {
  if (!drawn_ || destination_.queued() > 0) return;
  destination_.put("\r\x1b[J");
  destination_.write_some();
  drawn_ = false;
  changed_ = true;
}

bool ConsoleWriter::is_full() const { return pending() >= kMostQueued; }

}  // namespace accelerate::detail
