#pragma once

namespace accelerate::detail {

/// While it lives, operators that this thread calls use no other threads. The fused kernels parallelize even the smallest tensor,
/// and to wake threads for it takes longer than the work. Unlike at::set_num_threads it is seen by this thread alone.
class [[nodiscard]] SerialScope {
 public:
  SerialScope();
  ~SerialScope();
  SerialScope(const SerialScope&) = delete;
  SerialScope& operator=(const SerialScope&) = delete;

 private:
  int threads_;
};

}  // namespace accelerate::detail
