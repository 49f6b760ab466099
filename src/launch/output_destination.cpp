#include "launch/output_destination.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace accelerate {
namespace {

// A pipe that is ready has room for this much, so not even a blocking write of it waits.
constexpr size_t kBlockingPiece = 4096;
constexpr size_t kPiece = 256 * 1024;

}  // namespace

OutputDestination::OutputDestination(int file_descriptor) : file_descriptor_(file_descriptor) {
  struct stat facts = {};
  const bool known = ::fstat(file_descriptor, &facts) == 0;
  never_waits_ = known && S_ISREG(facts.st_mode);
  is_pipe_ = known && S_ISFIFO(facts.st_mode);
  // Not for files: there a second opening would have a position of its own.
  if (!known || !(is_pipe_ || S_ISCHR(facts.st_mode))) return;
  own_ = ::open(fmt::format("/proc/self/fd/{}", file_descriptor).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  never_waits_ = own_ >= 0;
}

OutputDestination::~OutputDestination() {
  if (own_ >= 0) ::close(own_);
}

void OutputDestination::put(std::string_view bytes) {
  if (reader_is_gone_ || error_ != 0) return;
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

void OutputDestination::write_some() {
  if (is_pipe_ && !reader_is_gone_) {
    pollfd end = {.fd = file_descriptor_, .events = 0, .revents = 0};
    reader_is_gone_ = ::poll(&end, 1, 0) > 0 && (end.revents & POLLERR) != 0;
  }
  while (queued() > 0 && !reader_is_gone_ && error_ == 0) {
    if (!never_waits_ && !can_take_bytes()) return;
    const size_t piece = std::min(queued(), never_waits_ ? kPiece : kBlockingPiece);
    const ssize_t taken = ::write(own_ >= 0 ? own_ : file_descriptor_, queue_.data() + written_, piece);
    if (taken >= 0) {
      written_ += static_cast<size_t>(taken);
    } else if (errno == EAGAIN) {
      return;
    } else if (errno == EPIPE) {
      reader_is_gone_ = true;
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
  if (reader_is_gone_ || error_ != 0) written_ = queue_.size();
}

void OutputDestination::add_to(std::vector<pollfd>& waited_for) const {
  if (reader_is_gone_ || error_ != 0) return;
  if (queued() == 0 && !is_pipe_) return;
  waited_for.push_back({.fd = file_descriptor_, .events = static_cast<short>(queued() > 0 ? POLLOUT : 0), .revents = 0});
}

}  // namespace accelerate
