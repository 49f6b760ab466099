#pragma once

#include <accelerate/data/tensor_dataset.h>

#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace accelerate {

/// A dataset of torch::data as one of ours: see torch_dataset.
template <class D>
class TorchDataset {
  static_assert(!D::is_stateful,
                "a stateful dataset of torch::data chooses its own batches and cannot be sharded by index; write it as a range "
                "of samples instead");

 public:
  explicit TorchDataset(D dataset) : dataset_(std::move(dataset)) {}

  std::optional<size_t> size() const { return dataset_.size(); }

  auto get(size_t index) requires(
      requires(D& d) { d.get(index); } || requires(D & d) { d.get_batch({index}).front(); }) {
    if constexpr (requires { dataset_.get(index); }) {
      return plain(dataset_.get(index));
    } else {
      const std::vector<size_t> one = {index};
      return plain(std::move(dataset_.get_batch(one).front()));
    }
  }

  /// Where its own get_batch already stacks.
  auto get_batch(const Indices& indices) requires(!requires(D & d) { d.get_batch({size_t()}).front(); }) {
    return plain(dataset_.get_batch(std::vector<size_t>(indices.begin(), indices.end())));
  }

 private:
  /// torch::data::Example has a constructor, so it is no plain struct.
  template <class E>
  static auto plain(E example) {
    if constexpr (requires { example.target; }) {
      if constexpr (std::is_same_v<decltype(example.data), at::Tensor> && std::is_same_v<decltype(example.target), at::Tensor>) {
        return Example{std::move(example.data), std::move(example.target)};
      } else {
        return std::pair(std::move(example.data), std::move(example.target));
      }
    } else if constexpr (requires { example.data; } && !std::is_same_v<E, at::Tensor>) {
      return std::move(example.data);
    } else {
      return example;
    }
  }

  D dataset_;
};

/// Any stateless dataset of torch::data, transformed by `map` or not. torch::data::Example becomes accelerate::Example, or a
/// std::pair where it does not hold tensors; a TensorExample becomes its tensor. A dataset that `map` has made stack its
/// examples gives finished batches.
template <class D>
TorchDataset<D> torch_dataset(D dataset) {
  return TorchDataset<D>(std::move(dataset));
}

}  // namespace accelerate
