#include "config/yaml_scalar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include <accelerate/core/error.h>

namespace accelerate::detail {
namespace {

constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kDigitsAndBars = "0123456789_";

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), text) != names.end();
}

/// Reads a scalar from left to right. A pattern is a chain of these calls; regular expressions would recurse over long input.
class ScalarCursor {
 public:
  explicit ScalarCursor(std::string_view rest) : rest_(rest) {}

  bool at_end() const { return rest_.empty(); }
  /// Takes one character of `set`.
  bool one(std::string_view set) {
    if (rest_.empty() || set.find(rest_.front()) == std::string_view::npos) return false;
    rest_.remove_prefix(1);
    return true;
  }
  /// Takes as many characters of `set` as there are; says whether there were `least`.
  bool many(std::string_view set, size_t least = 0) {
    const size_t taken = std::min(rest_.find_first_not_of(set), rest_.size());
    rest_.remove_prefix(taken);
    return taken >= least;
  }
  bool word(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  /// Takes `:59` once or more.
  bool sexagesimal() {
    size_t parts = 0;
    while (word(":")) {
      const bool first = one("012345");
      const bool second = one(kDigits);
      if (!first && !second) return false;
      ++parts;
    }
    return parts > 0;
  }
  bool exponent() { return !one("eE") || (one("-+") && many(kDigits, 1)); }

 private:
  std::string_view rest_;
};

bool is_number(std::string_view text) {
  ScalarCursor special(text);
  const bool is_signed = special.one("-+");
  if (special.word(".inf") || special.word(".Inf") || special.word(".INF")) return special.at_end();
  if (!is_signed && is_one_of(text, {".nan", ".NaN", ".NAN"})) return true;
  ScalarCursor fraction(text);
  if (fraction.word("."))
    return fraction.one(kDigits) && fraction.many(kDigitsAndBars) && fraction.exponent() && fraction.at_end();
  ScalarCursor decimal(text);
  decimal.one("-+");
  if (!decimal.one(kDigits)) return false;
  decimal.many(kDigitsAndBars);
  ScalarCursor minutes = decimal;
  if (decimal.word(".") && decimal.many(kDigitsAndBars) && decimal.exponent() && decimal.at_end()) return true;
  return minutes.sexagesimal() && minutes.word(".") && minutes.many(kDigitsAndBars) && minutes.at_end();
}

bool is_integer(std::string_view text) {
  ScalarCursor start(text);
  start.one("-+");
  ScalarCursor binary = start, hexadecimal = start, octal = start, decimal = start, minutes = start;
  if (binary.word("0b") && binary.many("01_", 1) && binary.at_end()) return true;
  if (hexadecimal.word("0x") && hexadecimal.many("0123456789abcdefABCDEF_", 1) && hexadecimal.at_end()) return true;
  if (octal.word("0") && octal.many("01234567_", 0) && octal.at_end()) return true;
  if (decimal.one("123456789") && decimal.many(kDigitsAndBars) && decimal.at_end()) return true;
  return minutes.one("123456789") && minutes.many(kDigitsAndBars) && minutes.sexagesimal() && minutes.at_end();
}

bool take_digits(ScalarCursor& cursor, int least, int most) {
  int taken = 0;
  while (taken < most && cursor.one(kDigits)) ++taken;
  return taken >= least;
}

bool is_timestamp(std::string_view text) {
  ScalarCursor date(text);
  if (take_digits(date, 4, 4) && date.word("-") && take_digits(date, 2, 2) && date.word("-") && take_digits(date, 2, 2) &&
      date.at_end()) {
    return true;
  }
  ScalarCursor moment(text);
  if (!take_digits(moment, 4, 4) || !moment.word("-") || !take_digits(moment, 1, 2) || !moment.word("-") ||
      !take_digits(moment, 1, 2) || !(moment.one("Tt") || moment.many(" \t", 1))) {
    return false;
  }
  if (!take_digits(moment, 1, 2) || !moment.word(":") || !take_digits(moment, 2, 2) || !moment.word(":") ||
      !take_digits(moment, 2, 2)) {
    return false;
  }
  if (moment.word(".")) moment.many(kDigits);
  if (moment.at_end()) return true;
  moment.many(" \t");
  if (moment.word("Z")) return moment.at_end();
  return moment.one("-+") && take_digits(moment, 1, 2) && (!moment.word(":") || take_digits(moment, 2, 2)) && moment.at_end();
}

bool is_flag(std::string_view text) {
  return is_one_of(text, {"yes", "Yes", "YES", "no", "No", "NO", "true", "True", "TRUE", "false", "False", "FALSE", "on", "On",
                          "ON", "off", "Off", "OFF"});
}

std::string lowered(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return lower;
}

[[noreturn]] void refuse_scalar(std::string_view plain, const char* expected) {
  throw ConfigError(fmt::format("'{}' is not {}", plain.substr(0, 60), expected));
}

uint64_t digits_value(std::string_view digits, int base, std::string_view plain) {
  uint64_t magnitude = 0;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), magnitude, base);
  if (problem == std::errc::result_out_of_range) refuse_scalar(plain, "a 64-bit integer");
  if (problem != std::errc() || end != digits.data() + digits.size()) refuse_scalar(plain, "an integer");
  return magnitude;
}

uint64_t magnitude_of(std::string_view digits, std::string_view plain) {
  if (digits == "0") return 0;
  if (digits.starts_with("0b")) return digits_value(digits.substr(2), 2, plain);
  if (digits.starts_with("0x")) return digits_value(digits.substr(2), 16, plain);
  if (digits.starts_with("0")) return digits_value(digits, 8, plain);
  uint64_t sum = 0;
  while (true) {
    const size_t colon = digits.find(':');
    uint64_t scaled = 0;
    if (__builtin_mul_overflow(sum, uint64_t{60}, &scaled) ||
        __builtin_add_overflow(scaled, digits_value(digits.substr(0, colon), 10, plain), &sum)) {
      refuse_scalar(plain, "a 64-bit integer");
    }
    if (colon == std::string_view::npos) return sum;
    digits.remove_prefix(colon + 1);
  }
}

nlohmann::json integer_value(std::string_view plain) {
  std::string digits(plain);
  std::erase(digits, '_');
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  const uint64_t magnitude = magnitude_of(digits, plain);
  const auto most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!negative) return magnitude <= most ? nlohmann::json(static_cast<int64_t>(magnitude)) : nlohmann::json(magnitude);
  if (magnitude > most + 1) refuse_scalar(plain, "a 64-bit integer");
  return static_cast<int64_t>(~magnitude + 1);
}

double part_value(std::string_view digits, std::string_view plain) {
  double number = 0;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (end != digits.data() + digits.size() || problem == std::errc::invalid_argument) refuse_scalar(plain, "a number");
  // Like Python: overflow gives infinity, underflow gives zero.
  if (problem == std::errc::result_out_of_range) return digits.find("e-") == std::string_view::npos ? HUGE_VAL : 0.0;
  return number;
}

nlohmann::json number_value(std::string_view plain) {
  std::string digits = lowered(plain);
  std::erase(digits, '_');
  const double sign = digits.starts_with('-') ? -1.0 : 1.0;
  if (digits.starts_with('-') || digits.starts_with('+')) digits.erase(0, 1);
  if (digits == ".inf") return sign * HUGE_VAL;
  if (digits == ".nan") return std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  std::string_view rest = digits;
  for (size_t colon = rest.find(':'); colon != std::string_view::npos; colon = rest.find(':')) {
    sum = (sum + part_value(rest.substr(0, colon), plain)) * 60;
    rest.remove_prefix(colon + 1);
  }
  return sign * (sum + part_value(rest, plain));
}

nlohmann::json flag_value(std::string_view plain) {
  const std::string lower = lowered(plain);
  if (is_one_of(lower, {"yes", "true", "on"})) return true;
  if (is_one_of(lower, {"no", "false", "off"})) return false;
  refuse_scalar(plain, "a boolean");
}

}  // namespace

YamlKind yaml_kind(std::string_view plain) {
  if (is_one_of(plain, {"", "~", "null", "Null", "NULL"})) return YamlKind::null;
  if (plain == "<<") return YamlKind::merge;
  if (plain == "=") return YamlKind::value;
  if (is_flag(plain)) return YamlKind::flag;
  if (is_number(plain)) return YamlKind::number;
  if (is_integer(plain)) return YamlKind::integer;
  return is_timestamp(plain) ? YamlKind::timestamp : YamlKind::text;
}

nlohmann::json yaml_value(YamlKind kind, std::string_view plain) {
  switch (kind) {
    case YamlKind::null:
      return nullptr;
    case YamlKind::flag:
      return flag_value(plain);
    case YamlKind::integer:
      return integer_value(plain);
    case YamlKind::number:
      return number_value(plain);
    default:
      return std::string(plain);
  }
}

}  // namespace accelerate::detail
