#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace accelerate::detail {

/// Where the weights of a unit lie, in elements, in one flat vector that is divided into shards of equal length, one a rank.
/// Weights begin at aligned places, so that kernels find them where they would be alone; a weight may span several shards.
class FlatLayout {
 public:
  /// Places of this many elements: 64 bytes of bfloat16.
  static constexpr int64_t kAlignment = 32;

  FlatLayout(std::vector<int64_t> sizes, int ranks);

  size_t weights() const { return sizes_.size(); }
  int64_t size(size_t weight) const { return sizes_[weight]; }
  int64_t offset(size_t weight) const { return offsets_[weight]; }
  int ranks() const { return ranks_; }
  int64_t shard_size() const { return shard_size_; }
  /// Of all shards.
  int64_t total() const { return shard_size_ * ranks_; }

  /// The part of a weight that is in a rank's shard; it may be empty.
  struct Piece {
    /// Its first element, counted in the weight, and in the shard.
    int64_t begin = 0, offset = 0;
    int64_t length = 0;
  };
  Piece piece(size_t weight, int rank) const;

  /// What lies between the weights and after them.
  struct Gap {
    int64_t offset, length;
  };
  const std::vector<Gap>& gaps() const { return gaps_; }

 private:
  std::vector<int64_t> sizes_, offsets_;
  std::vector<Gap> gaps_;
  int ranks_;
  int64_t shard_size_ = 0;
};

}  // namespace accelerate::detail
