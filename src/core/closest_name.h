#pragma once

#include <string>
#include <vector>

namespace accelerate {

/// The one of `names` that takes the fewest changes of a character to become `given`. `names` is not empty.
std::string closest_name(const std::string& given, const std::vector<std::string>& names);

}  // namespace accelerate
