#include "core/closest_name.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace accelerate::detail {
namespace {

// Changes of a character, and swaps of two neighbours, that turn one text into the other.
size_t edit_distance(const std::string& from, const std::string& to) {
  // Row i holds what it costs to turn the first i characters of `from` into the first j of `to`.
  std::vector<size_t> before, above(to.size() + 1), row(to.size() + 1);
  std::iota(above.begin(), above.end(), size_t{0});
  for (size_t i = 1; i <= from.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= to.size(); ++j) {
      const size_t replaced = above[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, above[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = std::exchange(above, row);
  }
  return above.back();
}

size_t slips_between(const std::string& given, const std::string& name) {
  return given.size() >= 3 && name.starts_with(given) ? 1 : edit_distance(given, name);
}

}  // namespace

std::optional<std::string> closest_name(const std::string& given, const std::vector<std::string>& names) {
  const auto closest = std::min_element(names.begin(), names.end(), [&given](const std::string& a, const std::string& b) {
    return slips_between(given, a) < slips_between(given, b);
  });
  const size_t most = std::max<size_t>(1, given.size() / 3);
  // A single letter is one change away from any other.
  if (closest == names.end() || given.size() < 2 || slips_between(given, *closest) > most) return std::nullopt;
  return *closest;
}

std::string closest_hint(const std::string& given, const std::vector<std::string>& names, const std::string& before,
                         const std::string& after) {
  const auto closest = closest_name(given, names);
  return closest ? ". The closest is " + before + *closest + after : "";
}

}  // namespace accelerate::detail
