#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace accelerate::detail {

/// Threads that do what they are given, first come, first served.
class WorkerPool {
 public:
  /// Each computes alone: operators that it calls use no other threads. Error when the system has no more threads to give.
  explicit WorkerPool(int count);
  /// Drops what has not begun and waits for what has, unless they were abandoned.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// `job` must not throw.
  void post(std::function<void()> job);
  /// Lets the threads go, since one of them may never come back. What they use must belong to their jobs.
  void abandon();
  bool abandoned() const { return abandoned_; }

 private:
  struct Desk;
  /// Drops what has not begun, and waits for the threads that are not abandoned.
  void close();
  std::shared_ptr<Desk> desk_;
  std::vector<std::thread> threads_;
  std::atomic<bool> abandoned_ = false;
};

/// The workers of a loader between its passes.
class KeptWorkers {
 public:
  /// The same ones each time, unless they were abandoned.
  std::shared_ptr<WorkerPool> get(int count);
  /// True for the first call alone.
  bool begin_first_pass();

 private:
  std::mutex mutex_;
  bool begun_ = false;
  std::shared_ptr<WorkerPool> pool_;
};

}  // namespace accelerate::detail
