#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// The mapping in a file, before it is validated against a schema.
struct ConfigDocument {
  nlohmann::json values = nlohmann::json::object();
  /// The line, from 1 on, of each key of `values`.
  std::map<std::string, int> lines = {};
};

/// What PyYAML's safe_load returns for `text`: anchors, aliases and merge keys are resolved, and the last of equal keys wins.
/// ConfigError, beginning with `path` and the line, for invalid YAML, anything but a single mapping, and alias bombs.
ConfigDocument read_yaml_document(std::string_view text, const std::string& path);

/// The same for JSON.
ConfigDocument read_json_document(std::string_view text, const std::string& path);

/// `text` for a message: unprintable characters are escaped, and long text is truncated.
std::string shown(std::string_view text);

}  // namespace accelerate::detail
