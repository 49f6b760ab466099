#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "residency/weight_home.h"

namespace accelerate::residency {

/// Weights on their way from their homes into memory. Any number of threads carry parts of it.
class Transfer {
 public:
  struct Load {
    std::shared_ptr<const WeightHome> home;
    void* to;
  };

  explicit Transfer(std::vector<Load> loads);

  /// Carries the next part, in the calling thread. False when no part is left to begin.
  bool carry_one();
  /// Returns when all is there, having helped. Throws what went wrong.
  void finish();
  /// Whether nobody works on it any more.
  bool ended() const { return left_.load(std::memory_order_acquire) == 0; }

 private:
  /// Small enough for several threads to share a large weight, large enough to hide the cost of a call.
  static constexpr uint64_t kPartSize = uint64_t{4} << 20;
  struct Part {
    size_t load;
    uint64_t offset, size;
  };

  std::vector<Load> loads_;
  std::vector<Part> parts_;
  std::atomic<size_t> next_ = 0, left_ = 0;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::exception_ptr failure_;  // the first
};

/// Threads that carry transfers, in the order in which they were asked for.
class Carriers {
 public:
  explicit Carriers(int threads);
  /// Waits for parts that are under way.
  ~Carriers();
  Carriers(const Carriers&) = delete;
  Carriers& operator=(const Carriers&) = delete;

  /// An urgent one comes before all others.
  void carry(std::shared_ptr<Transfer> transfer, bool urgent);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Transfer>> queue_;
  bool ending_ = false;
  std::vector<std::thread> threads_;  // the last: they use the others
};

}  // namespace accelerate::residency
