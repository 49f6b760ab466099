#pragma once

#include <accelerate/core/format_string.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

namespace accelerate {

namespace detail {

// A std::filesystem::path converts to std::string, so it is text without the cost of <filesystem>.
template <typename T>
concept Text = std::convertible_to<const T&, std::string_view> || std::convertible_to<const T&, std::string>;

template <typename T>
concept Integer = std::integral<T> && sizeof(T) <= sizeof(int64_t) && !std::same_as<T, wchar_t> && !std::same_as<T, char8_t> &&
                  !std::same_as<T, char16_t> && !std::same_as<T, char32_t>;

/// Only a `to_string` found by ADL counts, not one of ours that a value happens to convert to.
namespace beside {

void to_string() = delete;

template <typename T>
concept HasToString = requires(const T& value) {
  { to_string(value) } -> Text;
};

template <HasToString T>
std::string name_of(const T& value) {
  return std::string(to_string(value));
}

}  // namespace beside

}  // namespace detail

/// How values of a type of another library print: a specialization has `static FormatArgument::Value value_of(const T&)`.
template <typename T>
struct FormatAs {};

namespace detail {
template <typename T>
concept HasFormatAs = requires(const T& value) {
  FormatAs<T>::value_of(value);
};
}  // namespace detail

/// What `format`, `print` and the loggers take: bool, char, integers, floating point, text, paths, and enumerations or
/// classes with a `to_string` found beside them. Tensors, where accelerate/distributed/format_tensor.h is included.
template <typename T>
concept Formattable =
    detail::Integer<T> || std::floating_point<T> || detail::Text<T> || detail::beside::HasToString<T> || detail::HasFormatAs<T>;

/// One argument of `format`. Keeps a copy, so it may outlive the original.
class FormatArgument {
 public:
  /// float is not double here: 0.1f must print as 0.1.
  using Value = std::variant<bool, char, int64_t, uint64_t, float, double, std::string>;

  /// Takes any Formattable. A null `const char*` is a UsageError.
  template <typename T>
  FormatArgument(const T& value) : value_(convert(value)) {}

  /// The value, as one of the few kinds that can be formatted.
  const Value& value() const { return value_; }

 private:
  template <typename T>
  static Value convert(const T& value) {
    constexpr bool prints = Formattable<T>;
    static_assert(
        prints, "this type cannot be formatted: give numbers, text, paths, tensors, or a type with a to_string in its namespace");
    if constexpr (!Formattable<T>) {
      return {};
    } else if constexpr (detail::HasFormatAs<T>) {
      return FormatAs<T>::value_of(value);
    } else if constexpr (std::same_as<T, bool> || std::same_as<T, char> || std::same_as<T, float>) {
      return value;
    } else if constexpr (std::floating_point<T>) {
      return static_cast<double>(value);
    } else if constexpr (std::signed_integral<T>) {
      return static_cast<int64_t>(value);
    } else if constexpr (std::integral<T>) {
      return static_cast<uint64_t>(value);
    } else if constexpr (std::convertible_to<const T&, const char*>) {
      return from_c_string(value);
    } else if constexpr (std::convertible_to<const T&, std::string_view>) {
      return std::string(std::string_view(value));
    } else if constexpr (std::convertible_to<const T&, std::string>) {
      return static_cast<std::string>(value);
    } else {
      return detail::beside::name_of(value);
    }
  }

  static std::string from_c_string(const char* text);

  Value value_;
};

/// `pattern` with its replacement fields filled, as in fmt and std::format: "{:.3f}", "{:>8}", "{1} {0}". Without arguments the
/// text is used as it is, with its braces. A pattern that does not match its arguments is a UsageError that quotes it.
std::string format_arguments(std::string_view pattern, std::span<const FormatArgument> arguments);

namespace detail {

template <typename T>
constexpr FormatKind format_kind() {
  if constexpr (HasFormatAs<T> || !Formattable<T>) return FormatKind::any;
  if constexpr (std::same_as<T, bool>) return FormatKind::boolean;
  if constexpr (std::same_as<T, char>) return FormatKind::character;
  if constexpr (std::integral<T>) return FormatKind::integer;
  return std::floating_point<T> ? FormatKind::real : FormatKind::text;
}

template <typename... Args>
std::array<FormatArgument, sizeof...(Args)> format_pack(const Args&... args) {
  return {FormatArgument(args)...};
}

}  // namespace detail

/// The pattern for values of these types.
template <typename... Args>
using FormatStringFor = FormatString<detail::format_kind<Args>()...>;

/// The same for values of any kind: `accelerate::format("epoch {} loss {:.3f}", epoch, loss)`. Inside this library the call
/// is written with its namespace: where the standard library has std::format too, a std::string argument would find both.
template <typename... Args>
std::string format(FormatStringFor<Args...> pattern, const Args&... args) {
  return format_arguments(pattern.text(), detail::format_pack(args...));
}

}  // namespace accelerate
