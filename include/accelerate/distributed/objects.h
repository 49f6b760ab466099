#pragma once

#include <accelerate/distributed/leaves.h>

#include <string>
#include <tuple>
#include <vector>

/// Objects of the user's own types as Values and back: what is sent when it is not a tensor.
namespace accelerate {
namespace detail {

/// Text that owns its letters: a std::string_view would point into what is gone when it arrives.
template <class T>
concept OwnedText = std::is_convertible_v<const T&, std::string> && std::is_constructible_v<T, std::string>;
template <class T>
concept TextMap = MapLike<T> && OwnedText<typename T::key_type>;

template <class T>
constexpr bool is_object() {
  if constexpr (std::is_same_v<T, Value> || std::is_same_v<T, StateDict> || std::is_same_v<T, at::Tensor> ||
                std::is_arithmetic_v<T> || std::is_enum_v<T> || OwnedText<T> || PlainStruct<T>) {
    return true;
  } else if constexpr (MapLike<T>) {
    return is_object<typename T::key_type>() && is_object<typename T::mapped_type>();
  } else if constexpr (SequenceLike<T> || is_optional<T>::value) {
    return is_object<typename T::value_type>();
  } else if constexpr (TupleLike<T>) {
    return []<size_t... I>(std::index_sequence<I...>) { return (is_object<std::tuple_element_t<I, T>>() && ...); }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    return false;
  }
}

[[noreturn]] void object_mismatch(const char* expected, const Value& found);
const Value::List& items_of(const Value& value, size_t expected);

}  // namespace detail

/// Numbers, enumerations, text, tensors, Values, and vectors, arrays, tuples, pairs, maps, optionals and plain structs of these.
template <class T>
concept Object = detail::is_object<std::remove_cvref_t<T>>();

/// `object` as plain data: a struct or tuple as a tuple, a map with text keys as a dictionary, another map as a list of pairs.
template <Object T>
Value to_value(const T& object) {
  if constexpr (std::is_enum_v<T>) {
    return to_value(static_cast<std::underlying_type_t<T>>(object));
  } else if constexpr (detail::OwnedText<T>) {
    return std::string(object);
  } else if constexpr (std::is_constructible_v<Value, const T&>) {
    return Value(object);
  } else if constexpr (detail::TextMap<T>) {
    StateDict dict;
    for (const auto& entry : object) dict[entry.first] = to_value(entry.second);
    return dict;
  } else if constexpr (detail::MapLike<T>) {
    Value::List list;
    for (const auto& entry : object) list.push_back(Value::Tuple{to_value(entry.first), to_value(entry.second)});
    return list;
  } else if constexpr (detail::SequenceLike<T>) {
    Value::List list;
    for (const auto& item : object) list.push_back(to_value(static_cast<const typename T::value_type&>(item)));
    return list;
  } else if constexpr (detail::TupleLike<T>) {
    Value::Tuple tuple;
    std::apply([&](const auto&... items) { (tuple.items.push_back(to_value(items)), ...); }, object);
    return tuple;
  } else if constexpr (detail::is_optional<T>::value) {
    return object ? to_value(*object) : Value();
  } else if constexpr (std::is_same_v<T, char>) {
    return std::string(1, object);
  } else {
    Value::Tuple tuple;
    detail::for_each_field(object, [&](const auto& field) { tuple.items.push_back(to_value(field)); });
    return tuple;
  }
}

/// The opposite of to_value. UsageError says what was expected and what was found.
template <Object T>
T from_value(const Value& value) {
  if constexpr (std::is_same_v<T, Value>) {
    return value;
  } else if constexpr (std::is_enum_v<T>) {
    return static_cast<T>(from_value<std::underlying_type_t<T>>(value));
  } else if constexpr (std::is_same_v<T, char>) {
    if (value.as<std::string>().size() != 1) detail::object_mismatch("a single character", value);
    return value.as<std::string>().front();
  } else if constexpr (std::is_same_v<T, StateDict> || std::is_same_v<T, at::Tensor> || std::is_arithmetic_v<T>) {
    return value.get<T>();
  } else if constexpr (detail::OwnedText<T>) {
    return T(value.as<std::string>());
  } else if constexpr (detail::TextMap<T>) {
    T map;
    for (const auto& [name, item] : value.as<StateDict>()) map.emplace(name, from_value<typename T::mapped_type>(item));
    return map;
  } else if constexpr (detail::MapLike<T>) {
    T map;
    for (const auto& pair : value.as<Value::List>()) {
      const auto& items = detail::items_of(pair, 2);
      map.emplace(from_value<typename T::key_type>(items[0]), from_value<typename T::mapped_type>(items[1]));
    }
    return map;
  } else if constexpr (detail::is_std_array<T>::value) {
    T array{};
    const auto& list = value.as<Value::List>();
    if (list.size() != array.size()) detail::object_mismatch("a list of the array's length", value);
    for (size_t i = 0; i < array.size(); ++i) array[i] = from_value<typename T::value_type>(list[i]);
    return array;
  } else if constexpr (detail::SequenceLike<T>) {
    T sequence;
    for (const auto& item : value.as<Value::List>()) sequence.insert(sequence.end(), from_value<typename T::value_type>(item));
    return sequence;
  } else if constexpr (detail::TupleLike<T>) {
    const auto& items = detail::items_of(value, std::tuple_size_v<T>);
    return [&]<size_t... I>(std::index_sequence<I...>) { return T{from_value<std::tuple_element_t<I, T>>(items[I])...}; }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (detail::is_optional<T>::value) {
    return value.is_none() ? T() : T(from_value<typename T::value_type>(value));
  } else {
    T object{};
    size_t i = 0;
    const auto& items = detail::items_of(value, detail::field_count<T>());
    detail::for_each_field(object, [&](auto& field) { field = from_value<std::remove_cvref_t<decltype(field)>>(items[i++]); });
    return object;
  }
}

namespace detail {
template <Object T>
Value::List to_list(const std::vector<T>& objects) {
  Value::List list;
  list.reserve(objects.size());
  for (const auto& object : objects) list.push_back(to_value(static_cast<const T&>(object)));
  return list;
}
}  // namespace detail

}  // namespace accelerate
