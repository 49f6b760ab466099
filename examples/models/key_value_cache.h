#pragma once

#include <ATen/core/TensorBody.h>

#include <utility>
#include <vector>

namespace models {

/// The keys and values of positions that were computed before, a pair a layer, each on the device of its layer. A forward
/// writes behind the positions that count, and they count when it has ended: one that throws half-way changes nothing.
class KeyValueCache {
 public:
  /// Room for `capacity` positions is made at the first use; more is made when it is needed.
  explicit KeyValueCache(int64_t capacity = 0) : capacity_(capacity) {}

  /// The positions that count.
  int64_t length() const { return length_; }

  /// Writes keys and values, [batch, heads, new positions, head_dim], behind those that count, and gives those of all
  /// positions up to the new ones. accelerate::UsageError when the batch is not the one of the positions before.
  std::pair<at::Tensor, at::Tensor> append(size_t layer, const at::Tensor& keys, const at::Tensor& values);

  /// Lets `count` more positions count: what the last one of a forward does.
  void advance(int64_t count) { length_ += count; }

 private:
  struct Layer {
    at::Tensor keys, values;
  };
  at::Tensor with_room(const at::Tensor& stored, const at::Tensor& added) const;

  int64_t capacity_;
  int64_t length_ = 0;
  std::vector<Layer> layers_;
};

}  // namespace models
