#include "output/output_destination.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace accelerate::detail {
namespace {

constexpr size_t kPiece = 256 * 1024;

// Not the user's end of a pseudo terminal, which has a number (TIOCGPTN): opening that once more makes a new terminal.
bool is_programs_terminal(int file_descriptor) {
  unsigned number = 0;
  return ::isatty(file_descriptor) == 1 && ::ioctl(file_descriptor, TIOCGPTN, &number) != 0;
}

}  // namespace

OutputDestination::OutputDestination(int file_descriptor) : file_descriptor_(file_descriptor) {
  struct stat facts = {};
  const bool known = ::fstat(file_descriptor, &facts) == 0;
  is_file_ = known && S_ISREG(facts.st_mode);
  is_pipe_ = known && S_ISFIFO(facts.st_mode);
  // Not for files: there a second opening would have a position of its own.
  if (!is_pipe_ && !is_programs_terminal(file_descriptor)) return;
  own_ = ::open(fmt::format("/proc/self/fd/{}", file_descriptor).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

OutputDestination::~OutputDestination() {
  if (own_ >= 0) ::close(own_);
}

void OutputDestination::put(std::string_view bytes) {
  if (reader_is_gone_ || is_lost_) return;
  if (written_ == queue_.size()) {
    queue_.clear();
    written_ = 0;
  } else if (written_ > queue_.size() / 2) {  // moves each byte once on average
    queue_.erase(0, written_);
    written_ = 0;
  }
  queue_ += bytes;
}

bool OutputDestination::can_take_bytes() const {
  pollfd ready = {.fd = file_descriptor_, .events = POLLOUT, .revents = 0};
  return ::poll(&ready, 1, 0) > 0;
}

// A terminal that polls as writable may have room for one byte only, and other processes may fill it first.
ssize_t OutputDestination::write_piece(std::string_view bytes) const {
  if (own_ >= 0) return ::write(own_, bytes.data(), bytes.size());
  if (is_file_) return ::write(file_descriptor_, bytes.data(), bytes.size());
  const int flags = ::fcntl(file_descriptor_, F_GETFL);
  ::fcntl(file_descriptor_, F_SETFL, flags | O_NONBLOCK);
  const ssize_t taken = ::write(file_descriptor_, bytes.data(), bytes.size());
  const int problem = errno;
  ::fcntl(file_descriptor_, F_SETFL, flags);
  errno = problem;
  return taken;
}

void OutputDestination::write_some() {
  if (is_pipe_ && !reader_is_gone_) {
    pollfd end = {.fd = file_descriptor_, .events = 0, .revents = 0};
    reader_is_gone_ = ::poll(&end, 1, 0) > 0 && (end.revents & POLLERR) != 0;
  }
  while (queued() > 0 && !reader_is_gone_ && !is_lost_) {
    if (!can_take_bytes()) return;
    const ssize_t taken = write_piece(std::string_view(queue_).substr(written_, kPiece));
    if (taken >= 0) {
      written_ += static_cast<size_t>(taken);
    } else if (errno == EAGAIN) {
      return;
    } else if (errno == EPIPE) {
      reader_is_gone_ = true;
    } else if (errno != EINTR) {
      is_lost_ = true;
      untold_error_ = errno;
    }
  }
  if (reader_is_gone_ || is_lost_) written_ = queue_.size();
}

void OutputDestination::add_to(std::vector<pollfd>& waited_for) const {
  if (reader_is_gone_ || is_lost_) return;
  if (queued() == 0 && !is_pipe_) return;
  waited_for.push_back({.fd = file_descriptor_, .events = static_cast<short>(queued() > 0 ? POLLOUT : 0), .revents = 0});
}

}  // namespace accelerate::detail
