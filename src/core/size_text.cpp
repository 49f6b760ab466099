#include "core/size_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "core/blanks.h"

namespace accelerate::detail {
namespace {

bool ends_with_unit(std::string_view text, std::string_view unit) {
  return text.size() >= unit.size() &&
         std::equal(unit.begin(), unit.end(), text.end() - static_cast<std::ptrdiff_t>(unit.size()),
                    [](char a, char b) { return a == std::toupper(static_cast<unsigned char>(b)); });
}

}  // namespace

std::optional<double> parse_size(std::string_view text, std::span<const SizeUnit> units) {
  const auto given = without_blanks(text);
  const auto unit = std::find_if(units.begin(), units.end(), [&](const auto& one) { return ends_with_unit(given, one.name); });
  if (unit == units.end()) return std::nullopt;
  const auto digits = without_blanks(given.substr(0, given.size() - unit->name.size()));
  double number = 0;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (problem != std::errc() || end != digits.data() + digits.size() || digits.empty()) return std::nullopt;
  const double bytes = std::trunc(number * unit->bytes);
  if (!(bytes >= 0) || bytes >= 0x1p63) return std::nullopt;
  return unit->may_be_bits && given.back() == 'b' ? std::floor(bytes / 8) : bytes;
}

}  // namespace accelerate::detail
