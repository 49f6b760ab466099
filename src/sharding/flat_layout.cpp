#include "sharding/flat_layout.h"

#include <algorithm>

namespace accelerate::detail {
namespace {

int64_t aligned(int64_t elements) {
  return (elements + FlatLayout::kAlignment - 1) / FlatLayout::kAlignment * FlatLayout::kAlignment;
}

}  // namespace

FlatLayout::FlatLayout(std::vector<int64_t> sizes, int ranks) : sizes_(std::move(sizes)), ranks_(ranks) {
  int64_t end = 0;
  for (const int64_t size : sizes_) {
    const int64_t offset = aligned(end);
    if (offset > end) gaps_.push_back({end, offset - end});
    offsets_.push_back(offset);
    end = offset + size;
  }
  shard_size_ = aligned((end + ranks_ - 1) / ranks_);
  if (total() > end) gaps_.push_back({end, total() - end});
}

FlatLayout::Piece FlatLayout::piece(size_t weight, int rank) const {
  const int64_t shard_begin = rank * shard_size_, shard_end = shard_begin + shard_size_;
  const int64_t begin = std::clamp(offsets_[weight], shard_begin, shard_end);
  const int64_t end = std::clamp(offsets_[weight] + sizes_[weight], shard_begin, shard_end);
  if (end <= begin) return {};
  return {begin - offsets_[weight], begin - shard_begin, end - begin};
}

}  // namespace accelerate::detail
