#pragma once

#include <accelerate/distributed/fields.h>
#include <accelerate/distributed/value.h>

#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <vector>

/// Nested data: tensors inside vectors, arrays, tuples, pairs, maps, optionals, plain structs and Values, to any depth.
/// Every operation on it copies the structure (handles, not elements) and changes the tensors in place, so that types,
/// keys and order are kept by construction and the work itself is done in a .cpp on a plain list of tensors.
namespace accelerate {
namespace detail {

/// The tensors found in nested data, in order; how they are nested ("{a:t,b:[tt]}"); the first thing that is not a tensor.
struct Leaves {
  std::vector<at::Tensor*> tensors;
  std::string outline;
  std::string other;
};

template <class T>
concept TextLike = std::is_convertible_v<const T&, std::string_view> || std::is_convertible_v<const T&, std::string>;

template <class T>
concept MapLike = requires(T& t) {
  typename T::mapped_type;
  t.begin();
  t.end();
};
template <class T>
concept SequenceLike = !MapLike<T> && !TextLike<T> && requires(T & t) {
  typename T::value_type;
  t.begin();
  t.end();
};
/// JSON and its like.
template <class T>
concept SequenceOfItself = SequenceLike<T> && std::is_same_v<typename T::value_type, T>;
template <class T>
struct is_optional : std::false_type {};
template <class T>
struct is_optional<std::optional<T>> : std::true_type {};
template <class T>
concept TupleLike = !SequenceLike<T> && requires {
  std::tuple_size<T>::value;
};

void collect(Value& value, Leaves& leaves);
void collect(StateDict& dict, Leaves& leaves);

/// Notes something that is not a tensor; `type` is the compiler's name of its type.
void collect_other(Leaves& leaves, const char* type);

template <class K>
std::string key_text(const K& key) {
  if constexpr (TextLike<K>) {
    return std::string(key);
  } else if constexpr (std::is_integral_v<K>) {
    return std::to_string(key);
  } else {
    return "?";
  }
}

template <class T>
void collect(T& data, Leaves& leaves) {
  static_assert(!std::is_const_v<T>, "a const member cannot be replaced by what another process sends: make it non-const");
  if constexpr (std::is_same_v<T, at::Tensor>) {
    leaves.tensors.push_back(&data);
    leaves.outline += 't';
  } else if constexpr (MapLike<T>) {
    leaves.outline += '{';
    for (auto& entry : data) {
      leaves.outline += key_text(entry.first) + ":";
      collect(entry.second, leaves);
      leaves.outline += ',';
    }
    leaves.outline += '}';
  } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
    collect_other(leaves, typeid(T).name());
  } else if constexpr (SequenceLike<T>) {
    leaves.outline += '[';
    for (auto& item : data) collect(item, leaves);
    leaves.outline += ']';
  } else if constexpr (TupleLike<T>) {
    leaves.outline += '(';
    std::apply([&](auto&... items) { (collect(items, leaves), ...); }, data);
    leaves.outline += ')';
  } else if constexpr (is_optional<T>::value) {
    leaves.outline += '?';
    if (data) collect(*data, leaves);
  } else if constexpr (PlainStruct<T>) {
    leaves.outline += '(';
    for_each_field(data, [&](auto& field) { collect(field, leaves); });
    leaves.outline += ')';
  } else {
    collect_other(leaves, typeid(T).name());
  }
}

template <class T>
Leaves leaves_of(T& data) {
  Leaves leaves;
  collect(data, leaves);
  return leaves;
}

template <class T>
constexpr bool may_hold_tensors() {
  if constexpr (std::is_same_v<T, at::Tensor> || std::is_same_v<T, Value> || std::is_same_v<T, StateDict> || PlainStruct<T>) {
    return true;
  } else if constexpr (MapLike<T>) {
    return may_hold_tensors<typename T::mapped_type>();
  } else if constexpr (SequenceOfItself<T>) {
    return false;
  } else if constexpr (SequenceLike<T> || is_optional<T>::value) {
    return may_hold_tensors<typename T::value_type>();
  } else if constexpr (TupleLike<T>) {
    return []<size_t... I>(std::index_sequence<I...>) { return (may_hold_tensors<std::tuple_element_t<I, T>>() || ...); }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    return false;
  }
}

}  // namespace detail

/// A tensor, a Value, or vectors, arrays, tuples, pairs, maps, optionals and plain structs that hold some, to any depth.
/// Text and numbers alone are objects: gather_object and broadcast_object_list take those.
template <class T>
concept Nested = detail::may_hold_tensors<std::remove_cvref_t<T>>();

namespace detail {
/// Data in which tensors can be found: of a struct with more fields nothing is known.
template <class T>
concept Searchable = Nested<T> && !(PlainStruct<T> && field_count<T>() > kMostFields);

void send_to_device(const Leaves& leaves, at::Device device, bool non_blocking);
int64_t find_batch_size(const Leaves& leaves);
void slice_tensors(const Leaves& leaves, int64_t start, int64_t stop);
void convert_to_fp32(const Leaves& leaves);
void pad_input_tensors(const Leaves& leaves, int64_t batch_size, int64_t num_processes);
void concatenate(const std::vector<Leaves>& parts, int64_t dim);
}  // namespace detail

/// The same data with its tensors on `device`. Anything that is not a tensor is left as it is.
template <Nested T>
T send_to_device(T data, at::Device device, bool non_blocking = false) {
  detail::send_to_device(detail::leaves_of(data), device, non_blocking);
  return data;
}

/// The length of the first dimension of the first tensor. UsageError when there is no tensor or it has no dimension.
template <Nested T>
int64_t find_batch_size(T data) {
  return detail::find_batch_size(detail::leaves_of(data));
}

/// Rows `start` up to `stop` of every tensor.
template <Nested T>
T slice_tensors(T data, int64_t start, int64_t stop) {
  detail::slice_tensors(detail::leaves_of(data), start, stop);
  return data;
}

/// float16 and bfloat16 tensors as float32; every other tensor as it is.
template <Nested T>
T convert_to_fp32(T data) {
  detail::convert_to_fp32(detail::leaves_of(data));
  return data;
}

/// Zero rows added to tensors of `batch_size` rows until the batch divides among `num_processes`.
template <Nested T>
T pad_input_tensors(T data, int64_t batch_size, int64_t num_processes) {
  detail::pad_input_tensors(detail::leaves_of(data), batch_size, num_processes);
  return data;
}

/// Several pieces of nested data of one shape as one, tensors joined along `dim`. A single piece is returned as it is.
template <Nested T>
T concatenate(std::vector<T> pieces, int64_t dim = 0) {
  std::vector<detail::Leaves> parts;
  for (auto& piece : pieces) parts.push_back(detail::leaves_of(piece));
  detail::concatenate(parts, dim);
  return std::move(pieces.front());
}

/// Tensors as nested lists of numbers, bfloat16 by way of float32; the rest as it is.
Value listify(const Value& value);

}  // namespace accelerate
