#include "core/closest_name.h"

#include <algorithm>
#include <numeric>

namespace accelerate {
namespace {

size_t edit_distance(const std::string& from, const std::string& to) {
  // costs[j] turns the part of `from` seen so far into the first j characters of `to`.
  std::vector<size_t> costs(to.size() + 1);
  std::iota(costs.begin(), costs.end(), size_t{0});
  for (const char character : from) {
    size_t diagonal = costs[0]++;
    for (size_t j = 1; j <= to.size(); ++j) {
      const size_t replaced = diagonal + (character == to[j - 1] ? 0 : 1);
      diagonal = costs[j];
      costs[j] = std::min({replaced, costs[j] + 1, costs[j - 1] + 1});
    }
  }
  return costs.back();
}

}  // namespace

std::string closest_name(const std::string& given, const std::vector<std::string>& names) {
  return *std::min_element(names.begin(), names.end(), [&given](const std::string& a, const std::string& b) {
    return edit_distance(given, a) < edit_distance(given, b);
  });
}

}  // namespace accelerate
