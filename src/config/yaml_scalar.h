#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

/// Plain scalars as YAML 1.1 has them and PyYAML reads them: `on` is a boolean, `017` is fifteen, `1e8` is text.
namespace accelerate::detail {

/// What a plain scalar stands for.
enum class YamlKind { text, null, flag, integer, number, timestamp, merge, value };

/// The kind that PyYAML resolves `plain` to. What is not `text` must be quoted to be text.
YamlKind yaml_kind(std::string_view plain);

/// The value of `plain` taken as `kind`. A timestamp stays text. ConfigError when `plain` has no such value.
nlohmann::json yaml_value(YamlKind kind, std::string_view plain);

}  // namespace accelerate::detail
