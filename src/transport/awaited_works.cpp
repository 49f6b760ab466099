#include "transport/awaited_works.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "rendezvous/c10d_compat.h"
#include "rendezvous/without_signals.h"

namespace accelerate::detail {

/// A work that one of our threads waits for.
class AwaitedWork : public c10d::Work {
 public:
  explicit AwaitedWork(c10::intrusive_ptr<c10d::Work> its_inner) : inner(std::move(its_inner)) {}
  void end(std::exception_ptr error) { finish(std::move(error)); }

  c10::intrusive_ptr<c10d::Work> inner;
};

/// As many threads as works were ever waited for at once: one that waits for a peer must not hold up another.
class AwaitedWorks::Threads {
 public:
  ~Threads() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void push(c10::intrusive_ptr<AwaitedWork> work) {
    const std::lock_guard lock(mutex_);
    if (idle_ <= works_.size()) {
      const WithoutSignals for_the_thread;
      threads_.emplace_back([this] { run(); });
      ++idle_;
    }
    works_.push_back(std::move(work));
    changed_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return closed_ || !works_.empty(); });
      if (works_.empty()) return;
      auto work = std::move(works_.front());
      works_.pop_front();
      --idle_;
      lock.unlock();
      std::exception_ptr error;
      try {
        work->inner->wait();
      } catch (...) {
        error = std::current_exception();
      }
      // Nobody who waits for the end may still find the tensor in use.
      work->inner.reset();
      lock.lock();
      ++idle_;  // before the end is known: whoever hears of it may start the next
      lock.unlock();
      work->end(error);
      work.reset();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<AwaitedWork>> works_;
  std::vector<std::thread> threads_;
  /// Threads that wait for a work, those included that have just been started or are about to wait.
  size_t idle_ = 0;
  bool closed_ = false;
};

AwaitedWorks::AwaitedWorks() : threads_(std::make_unique<Threads>()) {}
AwaitedWorks::~AwaitedWorks() = default;

c10::intrusive_ptr<c10d::Work> AwaitedWorks::await(c10::intrusive_ptr<c10d::Work> work) {
  auto awaited = c10::make_intrusive<AwaitedWork>(std::move(work));
  threads_->push(awaited);
  return awaited;
}

}  // namespace accelerate::detail
