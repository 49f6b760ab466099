#include "output/rank_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <accelerate/core/error.h>
#include "console/text_columns.h"

namespace accelerate::detail {
namespace {

constexpr size_t kLongestLine = 1 << 20;
constexpr size_t kReadAtOnce = 64 * 1024;

void set_window(int terminal, int rows, int columns) {
  const winsize size = {.ws_row = static_cast<unsigned short>(rows),
                        .ws_col = static_cast<unsigned short>(columns),
                        .ws_xpixel = 0,
                        .ws_ypixel = 0};
  ::ioctl(terminal, TIOCSWINSZ, &size);
}

}  // namespace

RankStream::RankStream(ConsoleWriter& console, int writer, std::string prefix, LastLines& last_lines,
                       std::unique_ptr<LogFile> file, bool alone)
    : console_(console),
      writer_(writer),
      prefix_(std::move(prefix)),
      last_lines_(last_lines),
      file_(std::move(file)),
      alone_(alone) {
  if (!console.is_terminal() || !make_terminal()) make_pipe();
}

RankStream::~RankStream() {
  close_writing_end();
  if (reading_end_ >= 0) ::close(reading_end_);
}

// A program on a terminal keeps its colours and draws its bars. The bytes must arrive unchanged (the real terminal processes
// them once, not twice), and the pseudo terminal must not become a controlling terminal.
bool RankStream::make_terminal() {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
  if (master < 0) return false;
  const int slave = ::unlockpt(master) == 0 ? ::ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC) : -1;
  if (slave < 0) {
    ::close(master);
    return false;
  }
  termios settings = {};
  ::tcgetattr(slave, &settings);
  settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  settings.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON | ISIG);
  ::tcsetattr(slave, TCSANOW, &settings);
  reading_end_ = master;
  writing_end_ = slave;
  if (!alone_) terminal_.emplace(room());
  set_window(master, console_.rows(), room());
  return true;
}

void RankStream::make_pipe() {
  std::array<int, 2> ends = {-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw WorkerError(fmt::format("Cannot create a pipe for the output of a rank: {}.", ::strerrordesc_np(errno)));
  }
  reading_end_ = ends[0];
  writing_end_ = ends[1];
  ::fcntl(reading_end_, F_SETFL, O_NONBLOCK);  // each end has flags of its own
}

// One column stays free, as in core/screen.cpp: what a terminal does after its last one differs from one to the next.
int RankStream::room() const { return std::max(1, console_.columns() - (alone_ ? 0 : 1) - columns_of(prefix_)); }

void RankStream::resize() {
  if (!console_.is_terminal() || reading_end_ < 0) return;
  set_window(reading_end_, console_.rows(), room());
  if (!terminal_) return;
  terminal_->resize(room());
  take_drawing();
}

void RankStream::close_writing_end() {
  if (writing_end_ >= 0) ::close(std::exchange(writing_end_, -1));
}

bool RankStream::read_piece() {
  if (reading_end_ < 0) return false;
  std::array<char, kReadAtOnce> buffer;
  const ssize_t got = ::read(reading_end_, buffer.data(), buffer.size());
  if (got > 0) {
    take({buffer.data(), static_cast<size_t>(got)});
    return true;
  }
  if (got < 0 && errno == EINTR) return true;
  if (got == 0 || errno != EAGAIN) close_reading_end();  // reading from a pseudo terminal that no process has open is an error
  return false;
}

void RankStream::read_some(size_t most) {
  for (size_t pieces = 0; pieces * kReadAtOnce < most && read_piece(); ++pieces) continue;
  if (terminal_) take_drawing();
}

// A process that the rank left behind may write forever, so there is a limit: more than a pipe holds.
void RankStream::drain() { read_some(2 * kLongestLine); }

void RankStream::end() {
  drain();
  close_reading_end();
}

void RankStream::close_reading_end() {
  if (reading_end_ < 0) return;
  ::close(std::exchange(reading_end_, -1));
  if (terminal_) {
    terminal_->finish();
    take_drawing();
  } else if (!rest_.empty() && !alone_) {
    take_lines("\n");
  }
}

void RankStream::take(std::string_view bytes) {
  if (file_) file_->write(bytes.data(), bytes.size());
  // A prompt is answered while its line has no end, and what is typed moves the cursor without us.
  if (alone_) console_.write(writer_, prefix_, bytes);
  if (terminal_) {
    terminal_->feed(bytes);
  } else {
    take_lines(bytes);
  }
}

void RankStream::take_lines(std::string_view bytes) {
  const size_t last_newline = bytes.rfind('\n');
  if (last_newline == std::string_view::npos) {
    rest_ += bytes;
    if (rest_.size() < kLongestLine) return;
    pass_on(rest_);
    rest_.clear();
    return;
  }
  const std::string_view first = bytes.substr(0, bytes.find('\n') + 1);
  const std::string_view others = bytes.substr(first.size(), last_newline + 1 - first.size());
  rest_ += first;
  for (const std::string_view lines : {std::string_view(rest_), others}) {
    pass_on(lines);
    last_lines_.add(lines);
  }
  rest_ = bytes.substr(last_newline + 1);
}

void RankStream::pass_on(std::string_view lines) {
  if (!alone_) console_.write(writer_, prefix_, lines);
}

void RankStream::take_drawing() {
  for (const std::string& line : terminal_->take_finished()) {
    console_.write(writer_, prefix_, line + "\n");
    last_lines_.add(line + "\n");
  }
  std::vector<std::string> rows = terminal_->live(room());
  for (std::string& row : rows) row.insert(0, prefix_);
  console_.show(writer_, std::move(rows));
}

std::string RankStream::rest() const {
  if (!terminal_) return rest_.substr(rest_.size() - std::min(rest_.size(), kReadAtOnce));
  std::string rows;
  for (const std::string& row : terminal_->live(room())) rows = row;
  return rows;
}

}  // namespace accelerate::detail
