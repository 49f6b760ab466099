#pragma once

#include <ATen/core/TensorBody.h>
#include <accelerate/data/sampler.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

namespace accelerate {

/// A sample of a TensorDataset; and, with both tensors stacked, a batch.
struct Example {
  at::Tensor data, target;
};

namespace detail {

/// Tensors of one length, read by rows. What is read is a copy: changing it in place does not reach the dataset.
class TensorRows {
 public:
  /// UsageError unless all have the same first dimension.
  explicit TensorRows(std::vector<at::Tensor> tensors);
  size_t size() const { return size_; }
  at::Tensor row(size_t tensor, size_t index) const;
  /// The rows at `indices`, in that order. UsageError when there is no such row.
  at::Tensor rows(size_t tensor, const Indices& indices) const;

 private:
  std::vector<at::Tensor> tensors_;
  size_t size_;
};

}  // namespace detail

/// Samples in memory: row i of `data` with row i of `target`. Gives Example.
class TensorDataset {
 public:
  /// UsageError unless both have the same first dimension.
  TensorDataset(at::Tensor data, at::Tensor target) : rows_({std::move(data), std::move(target)}) {}
  size_t size() const { return rows_.size(); }
  Example get(size_t index) const { return {rows_.row(0, index), rows_.row(1, index)}; }
  Example get_batch(const Indices& indices) const { return {rows_.rows(0, indices), rows_.rows(1, indices)}; }

 private:
  detail::TensorRows rows_;
};

/// The same for any number of tensors. Gives std::tuple.
template <class... Tensors>
class TensorTupleDataset {
 public:
  using Sample = std::tuple<Tensors...>;
  explicit TensorTupleDataset(Tensors... tensors) : rows_({std::move(tensors)...}) {}
  size_t size() const { return rows_.size(); }
  Sample get(size_t index) const {
    return [&]<size_t... I>(std::index_sequence<I...>) { return Sample{rows_.row(I, index)...}; }
    (std::index_sequence_for<Tensors...>());
  }
  Sample get_batch(const Indices& indices) const {
    return [&]<size_t... I>(std::index_sequence<I...>) { return Sample{rows_.rows(I, indices)...}; }
    (std::index_sequence_for<Tensors...>());
  }

 private:
  detail::TensorRows rows_;
};

/// A dataset of tuples: row i of every tensor. UsageError unless all have the same first dimension.
template <std::convertible_to<at::Tensor>... Tensors>
requires(sizeof...(Tensors) >= 1) auto make_tensor_dataset(Tensors... tensors) {
  return TensorTupleDataset(at::Tensor(std::move(tensors))...);
}

}  // namespace accelerate
