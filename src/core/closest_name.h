#pragma once

#include <optional>
#include <string>
#include <vector>

namespace accelerate::detail {

/// The one of `names` that `given` is most likely a slip of, if there is one: few characters are changed, left out, added or
/// swapped with the next for its length, or it is the beginning of that name.
std::optional<std::string> closest_name(const std::string& given, const std::vector<std::string>& names);

/// ". The closest is NAME", or nothing, for the end of a sentence. `before` and `after` stand beside the name.
std::string closest_hint(const std::string& given, const std::vector<std::string>& names, const std::string& before = "",
                         const std::string& after = "");

}  // namespace accelerate::detail
