#pragma once

#include <accelerate/distributed/fields.h>
#include <accelerate/distributed/value.h>

#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <vector>

/// How tensors are found in nested data, see nested.h.
namespace accelerate::detail {

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
  static_assert(!std::is_const_v<T>, "a const member cannot be overwritten with received data: make it non-const");
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

/// A class, or a container of some, whose members cannot be found: tensors in it would silently be left behind.
template <class T>
constexpr bool is_opaque() {
  if constexpr (std::is_same_v<T, at::Tensor> || std::is_same_v<T, Value> || std::is_same_v<T, StateDict> || TextLike<T> ||
                SequenceOfItself<T> || !std::is_class_v<T> || std::is_empty_v<T>) {
    return false;
  } else if constexpr (MapLike<T>) {
    return is_opaque<typename T::mapped_type>();
  } else if constexpr (SequenceLike<T> || is_optional<T>::value) {
    return is_opaque<typename T::value_type>();
  } else {
    return !TupleLike<T> && !PlainStruct<T>;
  }
}

/// Refuses what is a batch or a message as a whole and cannot be decomposed. Of a class in one of its fields nothing is asked:
/// it may be a note of the user's own.
template <class T>
constexpr void expect_parts() {
  constexpr bool opaque = is_opaque<T>();
  static_assert(!opaque,
                "a struct with constructors, private members or virtual functions cannot be decomposed to find its tensors: "
                "remove them (braces still fill its fields), or give a std::tuple");
}

template <class T>
Leaves leaves_of(T& data) {
  Leaves leaves;
  // Refused where the error can name the user's line.
  if constexpr (!is_opaque<T>()) collect(data, leaves);
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

}  // namespace accelerate::detail
