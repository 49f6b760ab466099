#pragma once

#include <ATen/core/Generator.h>
#include <accelerate/data/sampler.h>

#include <concepts>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

/// What a dataset is. Any type with the right members will do, given by value or as a std::shared_ptr.
namespace accelerate {
namespace detail {

template <class D>
struct Unwrapped {
  using type = D;
};
template <class D>
struct Unwrapped<std::shared_ptr<D>> {
  using type = D;
};
/// The dataset itself, also when it is given as a shared pointer.
template <class D>
using DatasetType = typename Unwrapped<std::remove_cvref_t<D>>::type;

template <class D>
concept HasSize = requires(D& dataset) {
  requires std::integral<decltype(dataset.size())> || std::integral<typename decltype(dataset.size())::value_type>;
};
template <class D>
concept GetsSample = requires(D& dataset, size_t i) {
  dataset.get(i);
};
template <class D>
concept GetsRandomSample = requires(D& dataset, size_t i, at::Generator& generator) {
  dataset.get(i, generator);
};
template <class D>
concept GetsBatch = requires(D& dataset, const Indices& indices) {
  dataset.get_batch(indices);
}
|| requires(D& dataset, std::span<const int64_t> indices) { dataset.get_batch(indices); };
// Spelled out: <ranges> would cost every program a third of a second.
template <class D>
using IteratorOf = decltype(std::ranges::begin(std::declval<D&>()));
template <class D>
concept InputRange = requires(D& dataset) {
  std::ranges::begin(dataset);
  std::ranges::end(dataset);
  requires std::input_iterator<IteratorOf<D>>;
};
template <class D>
concept IndexedRange = InputRange<D> && std::random_access_iterator<IteratorOf<D>>;

}  // namespace detail

/// Samples by position: `size()` and one of
///   `get(i)`             the sample at position i;
///   `get(i, generator)`  the same, with an at::Generator& of its own that depends on the seed, the epoch and i alone, so that
///                        random changes are repeatable whoever reads the sample and when;
/// and beside it or instead, where whole batches are read faster than samples,
///   `get_batch(indices)` a finished batch, from a `const Indices&` or a `std::span<const int64_t>`.
/// A vector of samples is a dataset too. With workers several threads call these at once.
template <class D>
concept MapDataset = detail::HasSize<D> &&
    (detail::GetsSample<D> || detail::GetsRandomSample<D> || detail::GetsBatch<D> || detail::IndexedRange<D>);

/// Samples one after the other: a range. `size()` is the number of samples, where it is known; `set_epoch(n)` is called before
/// the n-th pass; `generator()`, an at::Generator, is made equal on all processes.
template <class D>
concept IterableDataset = !MapDataset<D> && detail::InputRange<D>;

namespace detail {

class AnyDataLoader;

template <class D>
concept AnyDataset = (MapDataset<DatasetType<D>> ||
                      IterableDataset<DatasetType<D>>)&&!std::derived_from<DatasetType<D>, AnyDataLoader>;

/// Calls get_batch the way the dataset declares it.
template <GetsBatch D>
auto get_batch_of(D& dataset, const Indices& indices) {
  if constexpr (requires { dataset.get_batch(indices); }) {
    return dataset.get_batch(indices);
  } else {
    return dataset.get_batch(std::span<const int64_t>(indices));
  }
}

/// The sample at `index`, however the dataset gives it. `seeded` is called where a generator is wanted.
template <class D, class Seeded>
auto get_sample_of(D& dataset, int64_t index, Seeded&& seeded) {
  const auto i = static_cast<size_t>(index);
  if constexpr (GetsRandomSample<D>) {
    at::Generator generator = seeded(index);
    return dataset.get(i, generator);
  } else if constexpr (GetsSample<D>) {
    return dataset.get(i);
  } else if constexpr (GetsBatch<D>) {
    return get_batch_of(dataset, Indices{index});
  } else {
    return std::iter_value_t<IteratorOf<D>>(std::ranges::begin(dataset)[static_cast<std::ptrdiff_t>(i)]);
  }
}

template <class D>
constexpr auto sample_type() {
  if constexpr (MapDataset<D>) {
    using Seeded = at::Generator (*)(int64_t);
    return std::type_identity<
        std::remove_cvref_t<decltype(get_sample_of(std::declval<D&>(), int64_t(), std::declval<Seeded>()))>>();
  } else {
    return std::type_identity<std::iter_value_t<IteratorOf<D>>>();
  }
}
/// What a dataset gives.
template <AnyDataset D>
using SampleOf = typename decltype(sample_type<DatasetType<D>>())::type;

template <class D>
std::optional<int64_t> size_of(D& dataset) {
  if constexpr (!HasSize<D>) {
    return std::nullopt;
  } else if constexpr (requires { dataset.size().has_value(); }) {
    const auto size = dataset.size();
    return size ? std::optional(static_cast<int64_t>(*size)) : std::nullopt;
  } else {
    return static_cast<int64_t>(dataset.size());
  }
}

}  // namespace detail
}  // namespace accelerate
