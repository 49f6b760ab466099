#include "residency/slots.h"

#include <ATen/ops/empty.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

namespace accelerate::residency {
namespace {

/// Pages of 2 MiB where the system has them: a slot of fresh memory is touched in a fraction of the time.
void ask_for_large_pages(const at::Tensor& slot) {
  constexpr uintptr_t kPage = uintptr_t{2} << 20;
  const auto begin = (reinterpret_cast<uintptr_t>(slot.data_ptr()) + kPage - 1) & ~(kPage - 1);
  const auto end = (reinterpret_cast<uintptr_t>(slot.data_ptr()) + slot.nbytes()) & ~(kPage - 1);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace

size_t Slots::reusable(uint64_t bytes) const {
  size_t best = free_.size();
  for (size_t i = 0; i < free_.size(); ++i) {
    const uint64_t size = free_[i].nbytes();
    if (size < bytes || size > bytes + bytes / 4) continue;
    if (best == free_.size() || size < free_[best].nbytes()) best = i;
  }
  return best;
}

at::Tensor Slots::take(uint64_t bytes) {
  at::Tensor slot;
  if (const size_t found = reusable(bytes); found < free_.size()) {
    slot = std::move(free_[found]);
    free_.erase(free_.begin() + static_cast<ptrdiff_t>(found));
  } else {
    while (!free_.empty() && held_ + bytes > budget_) {
      held_ -= free_.back().nbytes();
      free_.pop_back();
    }
    slot = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(device_));
    if (device_.is_cpu()) ask_for_large_pages(slot);
    held_ += bytes;
  }
  used_ += slot.nbytes();
  peak_ = std::max(peak_, held_);
  return slot;
}

void Slots::give_back(at::Tensor slot) {
  used_ -= slot.nbytes();
  free_.push_back(std::move(slot));
  while (!free_.empty() && held_ > budget_) {
    held_ -= free_.front().nbytes();
    free_.erase(free_.begin());
  }
}

}  // namespace accelerate::residency
