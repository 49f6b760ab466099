#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// The mapping that a file holds, before anybody asks what its keys mean.
struct ConfigDocument {
  nlohmann::json values = nlohmann::json::object();
  /// The line, from 1 on, of each key of `values`.
  std::map<std::string, int> lines = {};
};

/// What PyYAML's safe_load makes of `text`: anchors, aliases and merge keys are resolved, of equal keys the last one counts.
/// ConfigError, beginning with `path` and the line, for what is no YAML, no single mapping, or grows beyond all reason.
ConfigDocument read_yaml_document(std::string_view text, const std::string& path);

/// The same for JSON.
ConfigDocument read_json_document(std::string_view text, const std::string& path);

/// `text` for a message: what is not printable is escaped, what is long is cut.
std::string shown(std::string_view text);

}  // namespace accelerate::detail
