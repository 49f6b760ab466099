#include "key_value_cache.h"

#include <accelerate/core/error.h>
#include <torch/torch.h>

namespace models {

at::Tensor KeyValueCache::with_room(const at::Tensor& stored, const at::Tensor& added) const {
  const int64_t needed = length_ + added.size(2);
  const int64_t room = stored.defined() ? stored.size(2) : 0;
  if (stored.defined() && stored.size(0) != added.size(0)) {
    throw accelerate::UsageError("The cache holds a batch of " + std::to_string(stored.size(0)) + ", and a batch of " +
                                 std::to_string(added.size(0)) + " was given. Every batch needs a cache of its own.");
  }
  if (room >= needed) return stored;
  // Twice the room each time: what is copied stays in proportion to what is written.
  auto larger =
      at::empty({added.size(0), added.size(1), std::max({needed, capacity_, 2 * room}), added.size(3)}, added.options());
  if (length_ > 0) larger.narrow(2, 0, length_).copy_(stored.narrow(2, 0, length_));
  return larger;
}

std::pair<at::Tensor, at::Tensor> KeyValueCache::append(size_t layer, const at::Tensor& keys, const at::Tensor& values) {
  if (layers_.size() <= layer) layers_.resize(layer + 1);
  auto& stored = layers_[layer];
  stored.keys = with_room(stored.keys, keys);
  stored.values = with_room(stored.values, values);
  const int64_t count = keys.size(2);
  stored.keys.narrow(2, length_, count).copy_(keys);
  stored.values.narrow(2, length_, count).copy_(values);
  return {stored.keys.narrow(2, 0, length_ + count), stored.values.narrow(2, 0, length_ + count)};
}

}  // namespace models
