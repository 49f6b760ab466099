#pragma once

#include <optional>
#include <string>
#include <vector>

namespace accelerate::detail {

/// The one of `names` that `given` is most likely a typo of, if any: few characters for its length are changed, left out, added
/// or swapped with the next, or it is a prefix of that name.
std::optional<std::string> closest_name(const std::string& given, const std::vector<std::string>& names);

/// ". The closest is NAME", or nothing, for the end of a sentence. `before` and `after` enclose the name.
std::string closest_hint(const std::string& given, const std::vector<std::string>& names, const std::string& before = "",
                         const std::string& after = "");

}  // namespace accelerate::detail
