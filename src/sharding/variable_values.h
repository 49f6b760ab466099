#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::detail {

/// Throws the ConfigError "NAME=VALUE: expected EXPECTED."
[[noreturn]] void refuse_variable(const std::string& name, const std::string& value, const std::string& expected);

/// The integer that `text` is in full, as Python's int() reads it, but without underscores.
std::optional<int64_t> whole_number(const std::string& text);

/// `text` without the blanks around it.
std::string without_blanks(const std::string& text);

/// The names in variable `name`, separated by commas. ConfigError when one is empty.
std::vector<std::string> names_listed_in(const std::string& name, const std::string& text);

}  // namespace accelerate::detail
