#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <string_view>

/// Patterns such as "epoch {} loss {:.3f}" that the compiler compares with the values they are for.
namespace accelerate {
namespace detail {

/// What a value is to its place. `any`: known when the program runs.
enum class FormatKind : unsigned char { boolean, character, integer, real, text, any };

/// Reads a pattern of fmt and std::format. Only the compiler runs it: what is thrown becomes its message. What it does not know
/// it lets pass, and fmt finds it when the program runs.
class PatternChecker {
 public:
  constexpr PatternChecker(std::string_view pattern, const FormatKind* kinds, size_t count)
      : rest_(pattern), kinds_(kinds), count_(count) {}

  /// `used` has room for as many values as there are.
  constexpr void check(bool* used) {
    used_ = used;
    while (!rest_.empty()) {
      const char c = take();
      if (c == '{' && !skip('{')) place();
      if (c == '}' && !skip('}')) throw "a } in the pattern has no {: write }} for a brace";
    }
    for (size_t i = 0; i < count_; ++i) {
      if (!used_[i]) throw "an argument has no {} in the pattern";
    }
  }

 private:
  constexpr char take() {
    if (rest_.empty()) throw "a { in the pattern has no }: write {{ for a brace";
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

  /// What a place or a width in braces stands for: the next value, or the one that is numbered.
  constexpr FormatKind value() {
    size_t index = next_index_;
    if (rest_.empty()) take();
    if (is_digit(next())) {
      if (next_index_ > 0) throw "places are numbered ({0}) or not ({}), all of them";
      numbered_ = true;
      index = number();
    } else if (next() != ':' && next() != '}') {
      throw "a place is {}, {0} or {:spec}: write {{ and }} for braces";
    } else if (numbered_) {
      throw "places are numbered ({0}) or not ({}), all of them";
    } else {
      ++next_index_;
    }
    if (index >= count_) throw "the pattern has more {} than there are arguments";
    used_[index] = true;
    return kinds_[index];
  }

  constexpr void place() {
    const FormatKind kind = value();
    if (skip(':')) spec(kind);
    if (take() != '}') throw "what stands after the : of a place is no format of fmt and std::format";
  }

  constexpr void spec(FormatKind kind) {
    fill();
    bool has_flags = skip_any("+- ");
    for (const char flag : {'#', '0'}) has_flags = skip(flag) || has_flags;
    if (has_flags && kind == FormatKind::text) throw "a sign, # and 0 are for numbers, and the argument is text";
    count_of_characters();
    if (skip('.')) {
      if (kind != FormatKind::real && kind != FormatKind::text && kind != FormatKind::any)
        throw "a precision (.3) is for floating point and text, and the argument is neither";
      if (!is_digit(next()) && next() != '{') throw "a precision is a number: .3";
      count_of_characters();
    }
    skip('L');
    type(kind);
  }
  /// Any character, of several bytes too, that an alignment follows.
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
    if (kind != FormatKind::integer && kind != FormatKind::any) throw "a width or precision in braces needs an integer";
    if (take() != '}') throw "a width or precision in braces is {} or {0}";
  }
  constexpr void type(FormatKind kind) {
    if (next() == '}' || rest_.empty()) return;
    constexpr std::string_view kTypes[] = {"sbBcdoxX", "cbBdoxX?", "bBcdoxX", "aAeEfFgG", "s?", "aAbBcdeEfFgGosxX?"};
    if (!skip_any(kTypes[static_cast<size_t>(kind)]))
      throw "the letter that ends a place does not fit its argument: d for integers, f, e, g for floating point, s for text";
  }

  std::string_view rest_;
  const FormatKind* kinds_;
  size_t count_;
  bool* used_ = nullptr;
  size_t next_index_ = 0;
  bool numbered_ = false;
};

}  // namespace detail

/// A pattern that is known only when the program runs, see runtime_format.
struct RuntimeFormat {
  std::string_view text;
};

/// Lets a text that the program makes be a pattern: `format(runtime_format(text), values...)`. One that does not fit its values
/// is a UsageError.
constexpr RuntimeFormat runtime_format(std::string_view text) { return {text}; }

/// What `format`, `print` and loggers take as a pattern for values of these kinds: a literal, which does not compile when it does
/// not fit them, or a runtime_format. Without values it is any text, taken as it is.
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
