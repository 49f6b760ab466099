#include "data/worker_pool.h"

#include <ATen/Parallel.h>
#include <accelerate/core/error.h>
#include <c10/util/thread_name.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <string>
#include <utility>

namespace accelerate::detail {

struct WorkerPool::Desk {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> jobs;
  size_t begun = 0;
  bool closed = false;

  void work() {
    c10::setThreadName("data loader");
    at::get_num_threads();  // sets a thread up the first time; later it would undo the next line
    at::set_num_threads(1);
    {
      const std::lock_guard lock(mutex);
      ++begun;
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
  std::string refusal;
  try {
    for (int i = 0; i < count; ++i) threads_.emplace_back([desk = desk_] { desk->work(); });
  } catch (const std::exception& error) {
    refusal = error.what();
  }
  {
    std::unique_lock lock(desk_->mutex);
    desk_->changed.wait(lock, [&] { return desk_->begun == threads_.size(); });
  }
  // A worker's set_num_threads(1) is also what threads begin with that come later, whoever starts them: this takes that back.
  at::set_num_threads(threads_here);
  if (refusal.empty()) return;
  const size_t started = threads_.size();
  close();
  throw Error("DataLoader: num_workers=" + std::to_string(count) + ", but only " + std::to_string(started) +
              " threads could be started (" + refusal + "). Use fewer.");
}

WorkerPool::~WorkerPool() { close(); }

void WorkerPool::close() {
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
  if (abandoned_.exchange(true)) return;
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
