#include "residency/transfer.h"

#include <algorithm>
#include <utility>

#include "core/start_threads.h"

namespace accelerate::detail {

Transfer::Transfer(std::vector<Load> loads, CopyLane* lane) : loads_(std::move(loads)), lane_(lane) {
  for (size_t i = 0; i < loads_.size(); ++i) {
    const Load& load = loads_[i];
    if (const at::Tensor* bytes = lane_ ? load.store->fetchable() : nullptr) {
      lane_->copy(*bytes, 0, load.to, load.offset, load.store->size());
      continue;
    }
    for (uint64_t offset = 0; offset < load.store->size(); offset += kPartSize) {
      parts_.push_back({i, offset, std::min(kPartSize, load.store->size() - offset)});
    }
  }
  left_ = parts_.size();
  if (lane_ && parts_.empty()) arrival_ = lane_->mark();
}

void Transfer::submit(const Part& part) {
  const Load& load = loads_[part.load];
  if (lane_) {
    lane_->bring(*load.store, part.offset, part.size, load.to, load.offset + part.offset);
  } else {
    uint8_t* const to = load.to.mutable_data_ptr<uint8_t>() + load.offset + part.offset;
    if (load.repeatedly) {
      load.store->read_repeatedly(to, part.size, part.offset);
    } else {
      load.store->read(to, part.size, part.offset);
    }
  }
}

bool Transfer::carry_one() {
  const size_t mine = next_.fetch_add(1, std::memory_order_relaxed);
  if (mine >= parts_.size()) return false;
  std::exception_ptr failure;
  try {
    submit(parts_[mine]);
  } catch (...) {
    failure = std::current_exception();
  }
  end_part(failure);
  return true;
}

void Transfer::end_part(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  if (left_.load(std::memory_order_relaxed) == 1 && lane_ && !failure && !failure_) {
    try {
      arrival_ = lane_->mark();
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (!failure_) failure_ = failure;
  if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) ended_.notify_all();
}

void Transfer::finish() {
  while (carry_one()) {
  }
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return ended(); });
  if (failure_) std::rethrow_exception(failure_);
}

IoThreadPool::IoThreadPool(int threads)
    : threads_(start_threads(static_cast<size_t>(std::max(threads, 0)), [this] { work(); })) {}

IoThreadPool::~IoThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
}

void IoThreadPool::submit(std::shared_ptr<Transfer> transfer, bool urgent) {
  {
    const std::lock_guard lock(mutex_);
    queue_.insert(urgent ? queue_.begin() : queue_.end(), std::move(transfer));
  }
  changed_.notify_all();
}

void IoThreadPool::work() {
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

}  // namespace accelerate::detail
