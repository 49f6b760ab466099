#include "launch/python_text.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include <accelerate/core/error.h>

namespace accelerate {
namespace {

void append_json(std::string& out, const nlohmann::json& value, size_t indent);

std::string json_string(const std::string& text) {
  return nlohmann::json(code_points(text).empty() ? "" : text).dump(-1, ' ', true);
}

std::string json_number(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
  return python_number(number);
}

template <typename Items, typename AppendItem>
void append_json_block(std::string& out, const Items& items, std::string_view brackets, size_t indent, AppendItem append_item) {
  out += brackets[0];
  const char* separator = "\n";
  for (auto item = items.begin(); item != items.end(); ++item) {
    out += separator + std::string(indent + 2, ' ');
    append_item(item);
    separator = ",\n";
  }
  if (!items.empty()) out += '\n' + std::string(indent, ' ');
  out += brackets[1];
}

void append_json(std::string& out, const nlohmann::json& value, size_t indent) {
  if (value.is_object()) {
    append_json_block(out, value, "{}", indent, [&](const auto& item) {
      out += json_string(item.key()) + ": ";
      append_json(out, item.value(), indent + 2);
    });
  } else if (value.is_array()) {
    append_json_block(out, value, "[]", indent, [&](const auto& item) { append_json(out, *item, indent + 2); });
  } else if (value.is_number_float()) {
    out += json_number(value.get<double>());
  } else {
    out += value.is_string() ? json_string(value.get_ref<const std::string&>()) : value.dump();
  }
}

/// How many bytes the code point at the start of `text` takes; 0 when it is not well formed.
size_t decode(std::string_view text, char32_t& point) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t length = byte(0) < 0x80   ? 1
                        : byte(0) < 0xc2 ? 0
                        : byte(0) < 0xe0 ? 2
                        : byte(0) < 0xf0 ? 3
                        : byte(0) < 0xf5 ? 4
                                         : 0;
  if (length == 0 || length > text.size()) return 0;
  point = length == 1 ? byte(0) : byte(0) & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    point = (point << 6) | (byte(i) & 0x3fu);
  }
  const bool overlong = (length == 3 && point < 0x800) || (length == 4 && point < 0x10000);
  const bool surrogate = point >= 0xd800 && point <= 0xdfff;
  return overlong || surrogate || point > 0x10ffff ? 0 : length;
}

}  // namespace

std::u32string code_points(std::string_view text) {
  std::u32string points;
  points.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    char32_t point = 0;
    const size_t length = decode(text.substr(at), point);
    if (length == 0)
      throw ConfigError(fmt::format("byte {} (0x{:02x}) is not UTF-8", at + 1, static_cast<unsigned char>(text[at])));
    points.push_back(point);
    at += length;
  }
  return points;
}

std::string python_number(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto written = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(written.ptr - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  const size_t sign = text[e + 1] == '+' ? 1 : 0;  // from_chars knows no plus
  std::from_chars(text.data() + e + 1 + sign, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  const auto plain = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::fixed);
  std::string fixed(buffer, plain.ptr);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

std::string python_json(const nlohmann::json& value) {
  std::string out;
  append_json(out, value, 0);
  return out + '\n';
}

}  // namespace accelerate
