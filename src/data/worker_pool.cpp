#include "data/worker_pool.h"

#include <ATen/Parallel.h>
#include <c10/util/thread_name.h>

#include <condition_variable>
#include <deque>
#include <utility>

namespace accelerate::detail {

struct WorkerPool::Desk {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> jobs;
  int waiting_to_begin = 0;
  bool closed = false;

  void work() {
    c10::setThreadName("data loader");
    at::get_num_threads();  // sets a thread up the first time; later it would undo the next line
    at::set_num_threads(1);
    {
      const std::lock_guard lock(mutex);
      --waiting_to_begin;
    }
    changed.notify_all();
    while (true) {
      std::function<void()> job;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return closed || !jobs.empty(); });
        if (closed) return;
        job = std::move(jobs.front());
        jobs.pop_front();
      }
      job();
    }
  }
};

WorkerPool::WorkerPool(int count) : desk_(std::make_shared<Desk>()) {
  const int threads_here = at::get_num_threads();
  desk_->waiting_to_begin = count;
  for (int i = 0; i < count; ++i) threads_.emplace_back([desk = desk_] { desk->work(); });
  {
    std::unique_lock lock(desk_->mutex);
    desk_->changed.wait(lock, [&] { return desk_->waiting_to_begin == 0; });
  }
  // A worker's set_num_threads(1) is also what threads begin with that come later, whoever starts them: this takes that back.
  at::set_num_threads(threads_here);
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(desk_->mutex);
    desk_->closed = true;
    desk_->jobs.clear();
  }
  desk_->changed.notify_all();
  for (auto& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void WorkerPool::post(std::function<void()> job) {
  {
    const std::lock_guard lock(desk_->mutex);
    desk_->jobs.push_back(std::move(job));
  }
  desk_->changed.notify_one();
}

void WorkerPool::abandon() {
  abandoned_ = true;
  for (auto& thread : threads_) {
    if (thread.joinable()) thread.detach();
  }
}

std::shared_ptr<WorkerPool> KeptWorkers::get(int count) {
  const std::lock_guard lock(mutex_);
  if (!pool_ || pool_->abandoned()) pool_ = std::make_shared<WorkerPool>(count);
  return pool_;
}

bool KeptWorkers::begin_first_pass() {
  const std::lock_guard lock(mutex_);
  return !std::exchange(begun_, true);
}

}  // namespace accelerate::detail
