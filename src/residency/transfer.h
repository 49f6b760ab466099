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

#include "residency/copy_lane.h"
#include "residency/weight_store.h"

namespace accelerate::detail {

/// Weights on their way from their stores into memory. Any number of threads carry parts of it.
class Transfer {
 public:
  struct Load {
    std::shared_ptr<const WeightStore> store;
    /// Bytes in memory, of which those from `offset` on are filled.
    at::Tensor to;
    uint64_t offset = 0;
    /// Whether it is loaded in every pass.
    bool repeatedly = false;
  };

  /// By a lane to its device, or, without one, into host memory. What the device fetches by itself is on its way at once.
  explicit Transfer(std::vector<Load> loads, CopyLane* lane = nullptr);

  /// Carries the next part, in the calling thread. False when no part is left to begin.
  bool carry_one();
  /// Returns when all is there, or, by a lane, on its way to the device; having helped. Throws what went wrong.
  void finish();
  /// Whether nobody works on it any more.
  bool ended() const { return left_.load(std::memory_order_acquire) == 0; }
  /// After `finish`: what a stream must wait for before it uses what was loaded. Null without a lane.
  std::shared_ptr<const c10::Event> arrival() const { return arrival_; }

 private:
  struct Part {
    size_t load;
    uint64_t offset, size;
  };

  void submit(const Part& part);
  void end_part(std::exception_ptr failure);

  std::vector<Load> loads_;
  CopyLane* lane_;
  std::vector<Part> parts_;
  std::atomic<size_t> next_ = 0, left_ = 0;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::exception_ptr failure_;                 // the first
  std::shared_ptr<const c10::Event> arrival_;  // written before the last part counts as ended
};

/// Threads that carry transfers, in the order in which they were asked for. Fewer than wanted, where the system refuses more: who
/// waits for a transfer carries it too.
class IoThreadPool {
 public:
  explicit IoThreadPool(int threads);
  /// Waits for parts that are under way.
  ~IoThreadPool();
  IoThreadPool(const IoThreadPool&) = delete;
  IoThreadPool& operator=(const IoThreadPool&) = delete;

  /// An urgent one comes before all others.
  void submit(std::shared_ptr<Transfer> transfer, bool urgent);
  int count() const { return static_cast<int>(threads_.size()); }

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Transfer>> queue_;
  bool ending_ = false;
  std::vector<std::jthread> threads_;  // the last: they use the others
};

}  // namespace accelerate::detail
