#pragma once

#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace accelerate::detail {

/// Stands for a value of any type, to ask how many an aggregate can be made of.
struct AnyField {
  template <class T>
  requires(!std::is_lvalue_reference_v<T>) constexpr operator T&&() const&& noexcept;
  template <class T>
  requires(std::is_copy_constructible_v<T>) constexpr operator T&() const& noexcept;
};

template <class T, size_t... I>
constexpr bool made_of(std::index_sequence<I...>) {
  return requires { T{std::declval<const AnyField&>(), (static_cast<void>(I), std::declval<const AnyField&>())...}; }
  || requires { T{std::declval<AnyField>(), (static_cast<void>(I), std::declval<AnyField>())...}; };
}

constexpr size_t kMostFields = 16;

/// The number of fields of a plain struct: the most values its braces take.
template <class T, size_t N = kMostFields + 1>
constexpr size_t field_count() {
  if constexpr (N == 0) {
    return 0;
  } else if constexpr (made_of<T>(std::make_index_sequence<N - 1>())) {
    return N;
  } else {
    return field_count<T, N - 1>();
  }
}

template <class T>
struct is_std_array : std::false_type {};
template <class T, size_t N>
struct is_std_array<std::array<T, N>> : std::true_type {};

/// Converts to the base classes of T, and to nothing else.
template <class T>
struct AnyBase {
  template <class B>
  requires(std::is_base_of_v<B, T> && !std::is_same_v<B, T>) constexpr operator B() const noexcept;
};
struct NoBase {};
/// The braces of a struct begin with its base classes. (A first field that can be made of everything takes both.)
template <class T>
concept HasBaseClass = requires {
  T{AnyBase<T>()};
}
&&!requires { T{NoBase()}; };

/// A struct of the user's own whose fields can be bound to names: no constructors, no private parts.
template <class T>
concept PlainStruct = std::is_class_v<T> && std::is_aggregate_v<T> && !is_std_array<T>::value && !std::is_empty_v<T>;

/// Calls `f` with all fields of `s` and returns what it returns.
template <class S, class F>
constexpr auto with_fields(S& s, F&& f) {
  constexpr bool derived = HasBaseClass<std::remove_const_t<S>>;
  constexpr size_t n = derived ? 0 : field_count<std::remove_const_t<S>>();
  static_assert(!derived,
                "a struct with a base class cannot be decomposed to find its tensors: make the base class its first field, or "
                "write all fields into one struct");
  static_assert(derived || (n >= 1 && n <= kMostFields), "a struct that is sent between processes must have 1 to 16 fields");
  // clang-format off
  if constexpr (n == 1) { auto& [a] = s; return f(a); }
  else if constexpr (n == 2) { auto& [a, b] = s; return f(a, b); }
  else if constexpr (n == 3) { auto& [a, b, c] = s; return f(a, b, c); }
  else if constexpr (n == 4) { auto& [a, b, c, d] = s; return f(a, b, c, d); }
  else if constexpr (n == 5) { auto& [a, b, c, d, e] = s; return f(a, b, c, d, e); }
  else if constexpr (n == 6) { auto& [a, b, c, d, e, g] = s; return f(a, b, c, d, e, g); }
  else if constexpr (n == 7) { auto& [a, b, c, d, e, g, h] = s; return f(a, b, c, d, e, g, h); }
  else if constexpr (n == 8) { auto& [a, b, c, d, e, g, h, i] = s; return f(a, b, c, d, e, g, h, i); }
  else if constexpr (n == 9) { auto& [a, b, c, d, e, g, h, i, j] = s; return f(a, b, c, d, e, g, h, i, j); }
  else if constexpr (n == 10) { auto& [a, b, c, d, e, g, h, i, j, k] = s; return f(a, b, c, d, e, g, h, i, j, k); }
  else if constexpr (n == 11) { auto& [a, b, c, d, e, g, h, i, j, k, l] = s; return f(a, b, c, d, e, g, h, i, j, k, l); }
  else if constexpr (n == 12) { auto& [a, b, c, d, e, g, h, i, j, k, l, m] = s; return f(a, b, c, d, e, g, h, i, j, k, l, m); }
  else if constexpr (n == 13) { auto& [a, b, c, d, e, g, h, i, j, k, l, m, o] = s; return f(a, b, c, d, e, g, h, i, j, k, l, m, o); }
  else if constexpr (n == 14) { auto& [a, b, c, d, e, g, h, i, j, k, l, m, o, p] = s; return f(a, b, c, d, e, g, h, i, j, k, l, m, o, p); }
  else if constexpr (n == 15) { auto& [a, b, c, d, e, g, h, i, j, k, l, m, o, p, q] = s; return f(a, b, c, d, e, g, h, i, j, k, l, m, o, p, q); }
  else if constexpr (n == 16) { auto& [a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r] = s; return f(a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r); }
  else { return f(); }
  // clang-format on
}

/// Calls `f` with each field of `s`, in order.
template <class S, class F>
constexpr void for_each_field(S& s, F&& f) {
  with_fields(s, [&f](auto&... fields) { (f(fields), ...); });
}

struct TypesOfFields {
  template <class... T>
  constexpr auto operator()(T&...) const {
    return std::type_identity<std::tuple<std::remove_cv_t<T>...>>();
  }
};
/// The types of the fields of a plain struct, as a std::tuple.
template <PlainStruct S>
using FieldTypes = typename decltype(with_fields(std::declval<S&>(), TypesOfFields()))::type;

}  // namespace accelerate::detail
