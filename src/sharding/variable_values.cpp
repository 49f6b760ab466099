#include "sharding/variable_values.h"

#include <accelerate/core/error.h>

#include <algorithm>
#include <charconv>

#include "core/escaped.h"

namespace accelerate::detail {

void refuse_variable(const std::string& name, const std::string& value, const std::string& expected) {
  throw ConfigError(name + "=" + escaped(value, kLongestQuote) + ": expected " + expected + ".");
}

std::optional<int64_t> whole_number(const std::string& text) {
  std::string digits = without_blanks(text);
  if (digits.starts_with('+')) digits.erase(0, 1);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

std::string without_blanks(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

std::vector<std::string> names_listed_in(const std::string& name, const std::string& text) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    names.push_back(without_blanks(text.substr(begin, end - begin)));
    if (names.back().empty()) refuse_variable(name, text, "names of classes, separated by commas");
    begin = end + 1;
  }
  return names;
}

}  // namespace accelerate::detail
