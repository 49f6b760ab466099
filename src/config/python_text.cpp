#include "config/python_text.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include <accelerate/core/error.h>
#include "core/utf8.h"

namespace accelerate::detail {
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

}  // namespace

std::u32string code_points(std::string_view text) {
  std::u32string points;
  points.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto [point, length] = first_code_point(text.substr(at));
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

std::string python_str(const nlohmann::json& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return python_number(value.get<double>());
  return value.dump();
}

}  // namespace accelerate::detail
