#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace accelerate::detail {

/// Memory on a compute device that units of weights take turns in. A slot that was given back is kept for the next unit of about
/// its size: memory that the system has just handed out costs more to fill than weights cost to read.
class Slots {
 public:
  /// Memory for a slot. It may be made of `scrap`, a slot of another size that is given up for it; undefined when there is none.
  using Allocate = std::function<at::Tensor(uint64_t bytes, at::Tensor scrap)>;
  Slots(Allocate allocate, uint64_t budget) : allocate_(std::move(allocate)), budget_(budget) {}

  /// Whether a slot of that size can be had within the budget, giving up slots that nobody uses.
  bool fits(uint64_t bytes) const { return reusable(bytes) < free_.size() || used_ + bytes <= budget_; }
  /// How much more must be given back before it fits.
  uint64_t missing(uint64_t bytes) const { return fits(bytes) ? 0 : used_ + bytes - budget_; }
  /// A slot, also beyond the budget.
  at::Tensor take(uint64_t bytes);
  void give_back(at::Tensor slot);
  /// Frees the slots that nobody uses.
  void free_unused();

  uint64_t budget() const { return budget_; }
  uint64_t used() const { return used_; }
  /// The most that was held at once, free slots included.
  uint64_t peak() const { return peak_; }

 private:
  /// The free slot that fits best without wasting much; free_.size() when there is none.
  size_t reusable(uint64_t bytes) const;

  Allocate allocate_;
  uint64_t budget_;
  uint64_t used_ = 0, held_ = 0, peak_ = 0;  // by units; with the free ones
  std::vector<at::Tensor> free_;
};

}  // namespace accelerate::detail
