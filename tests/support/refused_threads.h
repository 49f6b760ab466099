#pragma once

/// While it lives, this process gets `more` threads of std::thread, and then none (EAGAIN), as at the limit of a control group.
/// Those of others, such as OpenMP, are started all the same.
class RefusedThreads {
 public:
  explicit RefusedThreads(int more);
  ~RefusedThreads();
  RefusedThreads(const RefusedThreads&) = delete;
  RefusedThreads& operator=(const RefusedThreads&) = delete;
  /// How many were asked for and refused.
  int refused() const;
};
