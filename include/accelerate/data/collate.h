#pragma once

#include <accelerate/data/sampler.h>
#include <accelerate/distributed/leaves.h>

#include <array>
#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

/// How samples become a batch: the same type with every tensor stacked, and a tensor of numbers for each number.
namespace accelerate {
namespace detail {

/// How deep types are looked into: those that contain themselves have no end.
constexpr int kCollateLevels = 12;

/// Nothing but tensors in it, so that a batch of it can have the same type.
template <class T, int Levels = kCollateLevels>
constexpr bool tensors_only() {
  if constexpr (std::is_same_v<T, at::Tensor> || Levels == 0) {
    return true;
  } else if constexpr (std::is_same_v<T, Value> || std::is_same_v<T, StateDict> || std::is_same_v<T, Value::Tuple>) {
    return false;
  } else if constexpr (MapLike<T>) {
    return tensors_only<typename T::mapped_type, Levels - 1>();
  } else if constexpr (SequenceLike<T> || is_optional<T>::value) {
    return tensors_only<typename T::value_type, Levels - 1>();
  } else if constexpr (TupleLike<T>) {
    return []<class... E>(std::type_identity<std::tuple<E...>>) {
      return (tensors_only<E, Levels - 1>() && ...);
    }(std::type_identity<decltype(std::tuple_cat(std::declval<T>()))>());
  } else if constexpr (PlainStruct<T>) {
    return tensors_only<FieldTypes<T>, Levels - 1>();
  } else {
    return false;
  }
}

/// The type of a batch of T; none when only the user knows.
template <class T>
struct Batched {};
template <class T>
concept HasBatched = requires {
  typename Batched<T>::type;
};
template <class T>
requires(tensors_only<T>()) struct Batched<T> {
  using type = T;
};
template <class T>
requires std::is_arithmetic_v<T>
struct Batched<T> {
  using type = at::Tensor;
};
template <>
struct Batched<std::string> {
  using type = std::vector<std::string>;
};
template <class... T>
requires(!tensors_only<std::tuple<T...>>() && (HasBatched<T> && ...)) struct Batched<std::tuple<T...>> {
  using type = std::tuple<typename Batched<T>::type...>;
};
template <class A, class B>
requires(!tensors_only<std::pair<A, B>>() && HasBatched<A> && HasBatched<B>) struct Batched<std::pair<A, B>> {
  using type = std::pair<typename Batched<A>::type, typename Batched<B>::type>;
};
template <class T>
requires(!tensors_only<T>() && HasBatched<T>) struct Batched<std::vector<T>> {
  using type = std::vector<typename Batched<T>::type>;
};
template <class T, size_t N>
requires(!tensors_only<T>() && HasBatched<T>) struct Batched<std::array<T, N>> {
  using type = std::array<typename Batched<T>::type, N>;
};
template <class K, class V>
requires(!tensors_only<V>() && HasBatched<V>) struct Batched<std::map<K, V>> {
  using type = std::map<K, typename Batched<V>::type>;
};

/// Which samples are being joined, for messages.
struct CollatePlace {
  /// Their positions in the dataset; empty when they came without.
  const Indices& indices;
  /// Where in them, such as "[2]".
  std::string path = {};
};

/// Stacks the tensors of all samples into those of the first. UsageError names two samples whose shapes or nesting differ.
void stack(const std::vector<Leaves>& samples, const CollatePlace& place);
at::Tensor tensor_of(const std::vector<int64_t>& numbers);
at::Tensor tensor_of(const std::vector<double>& numbers, bool single_precision);
at::Tensor tensor_of_truths(const std::vector<int64_t>& truths);
/// UsageError.
[[noreturn]] void no_samples_to_join();
/// Throws unless all of `lengths` are equal.
void expect_equal_lengths(const std::vector<size_t>& lengths, const CollatePlace& place);
[[noreturn]] void unequal_keys(size_t sample, const CollatePlace& place);

template <class T>
typename Batched<T>::type collate(std::vector<T> samples, const CollatePlace& place);

/// Collates what `part` picks of every sample.
template <class T, class Part>
auto collate_part(std::vector<T>& samples, const CollatePlace& place, const std::string& name, Part&& part) {
  std::vector<std::remove_cvref_t<decltype(part(samples.front()))>> parts;
  parts.reserve(samples.size());
  for (T& sample : samples) parts.push_back(std::move(part(sample)));
  return collate(std::move(parts), CollatePlace{place.indices, place.path + "[" + name + "]"});
}

template <class T>
at::Tensor collate_numbers(const std::vector<T>& samples) {
  if constexpr (std::is_floating_point_v<T>) {
    return tensor_of(std::vector<double>(samples.begin(), samples.end()), std::is_same_v<T, float>);
  } else if constexpr (std::is_same_v<T, bool>) {
    return tensor_of_truths(std::vector<int64_t>(samples.begin(), samples.end()));
  } else {
    return tensor_of(std::vector<int64_t>(samples.begin(), samples.end()));
  }
}

template <class T>
typename Batched<T>::type collate_sequences(std::vector<T>& samples, const CollatePlace& place) {
  std::vector<size_t> lengths;
  for (const T& sample : samples) lengths.push_back(sample.size());
  expect_equal_lengths(lengths, place);
  typename Batched<T>::type batch;
  if constexpr (!is_std_array<T>::value) batch.resize(lengths.front());
  for (size_t i = 0; i < batch.size(); ++i) {
    // By value: an element of a vector<bool> is no reference.
    batch[i] = collate_part(samples, place, std::to_string(i), [i](T& sample) { return typename T::value_type(sample[i]); });
  }
  return batch;
}

template <class T>
typename Batched<T>::type collate_maps(std::vector<T>& samples, const CollatePlace& place) {
  typename Batched<T>::type batch;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].size() != samples.front().size()) unequal_keys(i, place);
    for (const auto& entry : samples.front()) {
      if (!samples[i].contains(entry.first)) unequal_keys(i, place);
    }
  }
  for (const auto& entry : T(samples.front())) {
    batch.emplace(entry.first,
                  collate_part(
                      samples, place, key_text(entry.first), [&](T & sample) -> auto& { return sample.at(entry.first); }));
  }
  return batch;
}

template <class T>
typename Batched<T>::type collate(std::vector<T> samples, const CollatePlace& place) {
  if (samples.empty()) no_samples_to_join();
  if constexpr (tensors_only<T>()) {
    std::vector<Leaves> leaves;
    leaves.reserve(samples.size());
    for (T& sample : samples) leaves.push_back(leaves_of(sample));
    stack(leaves, place);
    return std::move(samples.front());
  } else if constexpr (std::is_arithmetic_v<T>) {
    return collate_numbers(samples);
  } else if constexpr (TextLike<T>) {
    return samples;
  } else if constexpr (MapLike<T>) {
    return collate_maps(samples, place);
  } else if constexpr (SequenceLike<T>) {
    return collate_sequences(samples, place);
  } else {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return typename Batched<T>::type{collate_part(
          samples, place, std::to_string(I), [](T & sample) -> auto& { return std::get<I>(sample); })...};
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  }
}

}  // namespace detail

/// Samples that the default collation accepts: tensors, numbers, text, and tuples, pairs, vectors, arrays and maps of
/// these; optionals and structs of tensors.
template <class T>
concept Collatable = detail::HasBatched<T>;

/// Collates samples as a DataLoader does by default. Integers become int64. UsageError when there are
/// none, or their tensors differ in shape.
template <Collatable T>
typename detail::Batched<T>::type default_collate(std::vector<T> samples) {
  const Indices none;
  return detail::collate(std::move(samples), {none});
}

}  // namespace accelerate
