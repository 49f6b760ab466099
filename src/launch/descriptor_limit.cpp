#include "launch/descriptor_limit.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

namespace accelerate {
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

RoomForDescriptors::RoomForDescriptors(const DescriptorLimit& limit) : limit_(limit) {
  limit.raise();
  while (left_free_.size() < kLeftFree) {
    const int lowest = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (lowest < 0) return;
    left_free_.push_back(lowest);
  }
}

RoomForDescriptors::~RoomForDescriptors() {
  for (const int descriptor : left_free_) ::close(descriptor);
  limit_.restore();
}

}  // namespace accelerate
