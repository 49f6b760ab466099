#include "residency/slots.h"

#include <algorithm>
#include <cstdint>

namespace accelerate::detail {
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
    at::Tensor scrap;
    while (!free_.empty() && held_ + bytes > budget_) {
      held_ -= free_.back().nbytes();
      if (!scrap.defined()) scrap = std::move(free_.back());
      free_.pop_back();
    }
    slot = allocate_(bytes, std::move(scrap));
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

void Slots::free_unused() {
  for (const auto& slot : free_) held_ -= slot.nbytes();
  free_.clear();
}

}  // namespace accelerate::detail
