#include "console/screen.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "console/text_columns.h"

namespace accelerate::detail {

namespace {

struct TerminalSize {
  int rows = 24;
  int columns = 80;
};

TerminalSize terminal_size(int file_descriptor) {
  winsize size{};
  if (::ioctl(file_descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_row, size.ws_col};
}

std::string cursor_up(size_t rows) { return rows > 0 ? "\x1b[" + std::to_string(rows) + "A" : ""; }

}  // namespace

bool is_terminal(int file_descriptor) {
  const char* kind = std::getenv("TERM");
  return ::isatty(file_descriptor) == 1 && (kind == nullptr || std::string_view(kind) != "dumb");
}

bool write_all(int file_descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_descriptor, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {  // another process made our terminal or pipe non-blocking
      pollfd ready{.fd = file_descriptor, .events = POLLOUT, .revents = 0};
      if (::poll(&ready, 1, -1) < 0 && errno != EINTR) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

Screen& Screen::of_process() {
  static auto* screen = new Screen;
  return *screen;
}

Screen::Screen() : previous_terminate_(std::set_terminate(&terminate_below_rows)) {}

// An uncaught exception does not unwind: no bar is closed, and its message would be appended to one.
void Screen::terminate_below_rows() {
  Screen& screen = of_process();
  for (int row = screen.drawn_rows_.exchange(0); row > 0; --row) write_all(screen.file_descriptor_, "\r\n");
  if (screen.previous_terminate_ != nullptr) screen.previous_terminate_();
  std::abort();
}

void Screen::add(ScreenRow& row, int file_descriptor) {
  const std::lock_guard lock(mutex_);
  if (rows_.empty()) file_descriptor_ = file_descriptor;
  rows_.push_back(&row);
  write_all(file_descriptor_, draw());
}

void Screen::remove(ScreenRow& row, bool leave) {
  const std::lock_guard lock(mutex_);
  std::erase(rows_, &row);
  std::string bytes = erase();
  if (leave) bytes += row.text(terminal_size(file_descriptor_).columns - 1) + "\r\n";
  write_all(file_descriptor_, bytes + draw());
}

void Screen::redraw() {
  const std::lock_guard lock(mutex_);
  write_all(file_descriptor_, draw());
}

bool Screen::write_line(int file_descriptor, std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (file_descriptor == STDOUT_FILENO) {
    // Else this line would overtake what the program wrote before it.
    std::cout.flush();
    std::fflush(stdout);
  }
  std::string line(text);
  if (!line.ends_with('\n')) line += '\n';
  if (drawn_rows_ == 0 || !is_terminal(file_descriptor)) return write_all(file_descriptor, line);
  line.insert(0, erase());  // before draw(), which must see that nothing is drawn
  return write_all(file_descriptor, line + draw());
}

/// Leaves the cursor where the first row began.
std::string Screen::erase() { return drawn_rows_.exchange(0) > 0 ? "\r\x1b[J" : ""; }

/// Draws over what is there, without erasing first: a screen that is erased ten times a second flickers. The cursor rests
/// behind the first row, so that text which passes us by is appended to a bar and not overwritten by the next redraw.
std::string Screen::draw() {
  if (rows_.empty()) return "";
  const TerminalSize size = terminal_size(file_descriptor_);
  const auto shown = std::min(rows_.size(), static_cast<size_t>(std::max(1, size.rows - 1)));
  std::string bytes = "\r";
  int first_columns = 0;
  for (size_t i = 0; i < shown; ++i) {
    // One column stays free: what a terminal does after its last column differs from one to the next.
    const std::string text = rows_[i]->text(size.columns - 1);
    if (i == 0) first_columns = columns_of(text);
    bytes += text + (i + 1 < shown ? "\x1b[K\r\n" : "\x1b[J");
  }
  if (shown > 1) {
    bytes += cursor_up(shown - 1) + "\r";
    if (first_columns > 0) bytes += "\x1b[" + std::to_string(first_columns) + "C";
  }
  drawn_rows_ = static_cast<int>(shown);
  return bytes;
}

}  // namespace accelerate::detail
