#include "residency/transfer.h"

#include <algorithm>
#include <utility>

namespace accelerate::residency {

Transfer::Transfer(std::vector<Load> loads) : loads_(std::move(loads)) {
  for (size_t i = 0; i < loads_.size(); ++i) {
    for (uint64_t offset = 0; offset < loads_[i].home->size(); offset += kPartSize) {
      parts_.push_back({i, offset, std::min(kPartSize, loads_[i].home->size() - offset)});
    }
  }
  left_ = parts_.size();
}

bool Transfer::carry_one() {
  const size_t mine = next_.fetch_add(1, std::memory_order_relaxed);
  if (mine >= parts_.size()) return false;
  const Part& part = parts_[mine];
  const Load& load = loads_[part.load];
  try {
    load.home->read(static_cast<char*>(load.to) + part.offset, part.size, part.offset);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
  if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    const std::lock_guard lock(mutex_);
    ended_.notify_all();
  }
  return true;
}

void Transfer::finish() {
  while (carry_one()) {
  }
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return ended(); });
  if (failure_) std::rethrow_exception(failure_);
}

Carriers::Carriers(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

Carriers::~Carriers() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Carriers::carry(std::shared_ptr<Transfer> transfer, bool urgent) {
  {
    const std::lock_guard lock(mutex_);
    queue_.insert(urgent ? queue_.begin() : queue_.end(), std::move(transfer));
  }
  changed_.notify_all();
}

void Carriers::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || !queue_.empty(); });
    if (ending_) return;
    const auto transfer = queue_.front();
    lock.unlock();
    const bool carried = transfer->carry_one();
    lock.lock();
    if (!carried) std::erase(queue_, transfer);
  }
}

}  // namespace accelerate::residency
