#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <string_view>

/// Format strings such as "epoch {} loss {:.3f}", checked against their arguments at compile time.
namespace accelerate {
namespace detail {

/// The kind of an argument. `any`: known only at run time.
enum class FormatKind : unsigned char { boolean, character, integer, real, text, any };

/// Checks a format string at compile time: a throw becomes the compiler's error message. It accepts what it does not know, and
/// fmt reports that at run time.
class PatternChecker {
 public:
  constexpr PatternChecker(std::string_view pattern, const FormatKind* kinds, size_t count)
      : rest_(pattern), kinds_(kinds), count_(count) {}

  /// `used` has one element per argument.
  constexpr void check(bool* used) {
    used_ = used;
    while (!rest_.empty()) {
      const char c = take();
      if (c == '{' && !skip('{')) place();
      if (c == '}' && !skip('}')) throw "unmatched } in the format string: write }} for a literal brace";
    }
    for (size_t i = 0; i < count_; ++i) {
      if (!used_[i]) throw "the format string has fewer {} than arguments";
    }
  }

 private:
  constexpr char take() {
    if (rest_.empty()) throw "unmatched { in the format string: write {{ for a literal brace";
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }
  constexpr char next() const { return rest_.empty() ? '\0' : rest_.front(); }
  constexpr bool skip(char c) {
    if (next() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  constexpr bool skip_any(std::string_view characters) {
    return characters.find(next()) != std::string_view::npos && !rest_.empty() && skip(next());
  }
  static constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
  constexpr size_t number() {
    size_t value = 0;
    while (is_digit(next()) && value < 1000) value = value * 10 + static_cast<size_t>(take() - '0');
    return value;
  }

  /// The argument of a replacement field or a dynamic width: the next one, or the one with the given index.
  constexpr FormatKind value() {
    size_t index = next_index_;
    if (rest_.empty()) take();
    if (is_digit(next())) {
      if (next_index_ > 0) throw "cannot mix automatic ({}) and manual ({0}) argument indexing";
      numbered_ = true;
      index = number();
    } else if (next() != ':' && next() != '}') {
      throw "a replacement field is {}, {0} or {:spec}: write {{ and }} for literal braces";
    } else if (numbered_) {
      throw "cannot mix automatic ({}) and manual ({0}) argument indexing";
    } else {
      ++next_index_;
    }
    if (index >= count_) throw "the format string has more {} than arguments";
    used_[index] = true;
    return kinds_[index];
  }

  constexpr void place() {
    const FormatKind kind = value();
    if (skip(':')) spec(kind);
    if (take() != '}') throw "invalid format specifier after the colon";
  }

  constexpr void spec(FormatKind kind) {
    fill();
    bool has_flags = skip_any("+- ");
    for (const char flag : {'#', '0'}) has_flags = skip(flag) || has_flags;
    if (has_flags && kind == FormatKind::text) throw "a sign, # and 0 are only for numbers, but the argument is text";
    count_of_characters();
    if (skip('.')) {
      if (kind != FormatKind::real && kind != FormatKind::text && kind != FormatKind::any)
        throw "a precision (.3) is only for floating point and text, but the argument is neither";
      if (!is_digit(next()) && next() != '{') throw "the precision must be a number, such as .3";
      count_of_characters();
    }
    skip('L');
    type(kind);
  }
  /// A fill character, possibly of several bytes, followed by an alignment.
  constexpr void fill() {
    for (size_t length = 1; length <= 4 && length < rest_.size(); ++length) {
      if (rest_[0] == '{' || rest_[0] == '}') break;
      if (std::string_view("<>^").find(rest_[length]) == std::string_view::npos) continue;
      if (length > 1 && static_cast<unsigned char>(rest_[0]) < 0x80) break;
      rest_.remove_prefix(length + 1);
      return;
    }
    skip_any("<>^");
  }
  constexpr void count_of_characters() {
    if (!skip('{')) {
      number();
      return;
    }
    const FormatKind kind = value();
    if (kind != FormatKind::integer && kind != FormatKind::any) throw "a dynamic width or precision needs an integer";
    if (take() != '}') throw "a dynamic width or precision is {} or {0}";
  }
  constexpr void type(FormatKind kind) {
    if (next() == '}' || rest_.empty()) return;
    constexpr std::string_view kTypes[] = {"sbBcdoxX", "cbBdoxX?", "bBcdoxX", "aAeEfFgG", "s?", "aAbBcdeEfFgGosxX?"};
    if (!skip_any(kTypes[static_cast<size_t>(kind)]))
      throw "the type letter does not match the argument: d for integers, f, e, g for floating point, s for text";
  }

  std::string_view rest_;
  const FormatKind* kinds_;
  size_t count_;
  bool* used_ = nullptr;
  size_t next_index_ = 0;
  bool numbered_ = false;
};

}  // namespace detail

/// A format string that is known only at run time, see runtime_format.
struct RuntimeFormat {
  std::string_view text;
};

/// Uses a run-time string as a format string: `format(runtime_format(text), values...)`. One that does not match its arguments is
/// a UsageError.
constexpr RuntimeFormat runtime_format(std::string_view text) { return {text}; }

/// The format string parameter of `format`, `print` and loggers: a literal, which must match the arguments to compile, or a
/// runtime_format. Without arguments it is any text, used as it is.
template <detail::FormatKind... Kinds>
class FormatString {
 public:
  template <std::convertible_to<std::string_view> Text>
  consteval FormatString(const Text& text) : text_(text) {
    constexpr std::array kinds = {Kinds...};
    std::array<bool, sizeof...(Kinds)> used = {};
    detail::PatternChecker(text_, kinds.data(), kinds.size()).check(used.data());
  }
  constexpr FormatString(RuntimeFormat format) : text_(format.text) {}
  constexpr std::string_view text() const { return text_; }

 private:
  std::string_view text_;
};

template <>
class FormatString<> {
 public:
  template <std::convertible_to<std::string_view> Text>
  constexpr FormatString(const Text& text) : text_(text) {}
  constexpr FormatString(RuntimeFormat format) : text_(format.text) {}
  constexpr std::string_view text() const { return text_; }

 private:
  std::string_view text_;
};

}  // namespace accelerate
