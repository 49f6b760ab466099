#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

/// Values as Python's own libraries write them, byte for byte: `json.dumps` and PyYAML's `safe_dump`.
namespace accelerate::detail {

/// The shortest text that reads back as `number`, as Python's `repr` lays it out. Infinities and NaN are "inf", "-inf", "nan".
std::string python_number(double number);

/// `json.dumps(value, indent=2, sort_keys=True)` and a newline.
std::string python_json(const nlohmann::json& value);

/// `yaml.safe_dump(value)`: block style, sorted keys, folded at 80 columns, ASCII alone. ConfigError for text that is not UTF-8.
std::string python_yaml(const nlohmann::json& value);

/// The code points of UTF-8 `text`. ConfigError when it is not valid UTF-8.
std::u32string code_points(std::string_view text);

/// `value` as Python's str() writes it: None, True, 1.0, text as it is.
std::string python_str(const nlohmann::json& value);

}  // namespace accelerate::detail
