#pragma once

#include <sys/resource.h>

#include <cstddef>
#include <vector>

namespace accelerate::detail {

/// The soft limit on descriptors (`ulimit -n`) of a launcher that may need more of them than it was given. Workers get the limit
/// that we were given: it is raised only while we open descriptors and while we poll them, since poll takes no more than that.
class DescriptorLimit {
 public:
  /// `needed`: descriptors besides those that every launcher has.
  explicit DescriptorLimit(size_t needed);
  ~DescriptorLimit() { restore(); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

  /// Raises the limit as far as needed and allowed.
  void raise() const { ::setrlimit(RLIMIT_NOFILE, &raised_); }
  /// Restores the limit.
  void restore() const { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
  rlimit raised_ = {};
};

/// While it lives, the limit is raised, and new descriptors avoid the lowest numbers: they are left for code under the old limit,
/// such as a worker before exec.
class RoomForDescriptors {
 public:
  /// Throws WorkerError when there is no room for `count` descriptors.
  RoomForDescriptors(const DescriptorLimit& limit, size_t count);
  ~RoomForDescriptors() { release(0); }
  RoomForDescriptors(const RoomForDescriptors&) = delete;
  RoomForDescriptors& operator=(const RoomForDescriptors&) = delete;

 private:
  void release(size_t kept);

  const DescriptorLimit& limit_;
  std::vector<int> left_free_ = {};
};

}  // namespace accelerate::detail
