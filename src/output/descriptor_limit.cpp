#include "output/descriptor_limit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <accelerate/core/error.h>

namespace accelerate::detail {
namespace {

constexpr size_t kLeftFree = 16;
constexpr rlim_t kOfEveryLauncher = 32;

}  // namespace

DescriptorLimit::DescriptorLimit(size_t needed) {
  ::getrlimit(RLIMIT_NOFILE, &before_);
  raised_ = before_;
  const rlim_t wanted = kOfEveryLauncher + kLeftFree + needed;
  raised_.rlim_cur = std::max(before_.rlim_cur, std::min(wanted, before_.rlim_max));
}

RoomForDescriptors::RoomForDescriptors(const DescriptorLimit& limit, size_t count) : limit_(limit) {
  limit.raise();
  while (left_free_.size() < kLeftFree + count) {
    const int lowest = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (lowest < 0) {
      const int problem = errno;
      release(0);
      throw WorkerError(fmt::format("Cannot capture the output of all ranks: {}. Raise the limit on open files (ulimit -n).",
                                    ::strerrordesc_np(problem)));
    }
    left_free_.push_back(lowest);
  }
  release(kLeftFree);
}

void RoomForDescriptors::release(size_t kept) {
  for (; left_free_.size() > kept; left_free_.pop_back()) ::close(left_free_.back());
  if (kept == 0) limit_.restore();
}

}  // namespace accelerate::detail
