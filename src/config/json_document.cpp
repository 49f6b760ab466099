#include <fmt/format.h>

#include <algorithm>

#include <accelerate/core/error.h>
#include "config/config_document.h"
#include "core/escaped.h"

namespace accelerate::detail {
namespace {

constexpr int kDeepestJson = 64;
constexpr size_t kLongestShown = 60;

int line_at(std::string_view text, size_t byte) {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(byte, text.size()));
  return 1 + static_cast<int>(std::count(text.begin(), end, '\n'));
}

/// The end of the string whose quote is at `start`.
size_t string_end(std::string_view text, size_t start) {
  size_t at = start + 1;
  while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
  return std::min(at, text.size());
}

/// The line of each key of the outermost object, which nlohmann does not report. The text is known to be valid JSON.
std::map<std::string, int> key_lines(std::string_view text) {
  std::map<std::string, int> lines;
  std::string last_string;
  int depth = 0, line = 1, string_line = 1;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    line += c == '\n';
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (c == ':' && depth == 1) lines[last_string] = string_line;
    if (c != '"') continue;
    const size_t end = string_end(text, at);
    if (depth == 1) last_string = nlohmann::json::parse(text.substr(at, end + 1 - at)).get<std::string>();
    string_line = line;
    at = end;
  }
  return lines;
}

void check_depth(std::string_view text, const std::string& path) {
  int depth = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') at = string_end(text, at);
    if (at >= text.size()) return;
    depth += (text[at] == '{' || text[at] == '[') - (text[at] == '}' || text[at] == ']');
    if (depth > kDeepestJson) {
      throw ConfigError(fmt::format("{}:{}: more than {} levels of nesting.", path, line_at(text, at), kDeepestJson));
    }
  }
}

}  // namespace

ConfigDocument read_json_document(std::string_view text, const std::string& path) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    throw ConfigError(fmt::format("{}:1: the file is empty. `accelerate config` writes a configuration.", path));
  }
  check_depth(text, path);
  nlohmann::json values;
  try {
    values = nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    const size_t byte = error.byte > 0 ? error.byte - 1 : 0;
    const std::string_view rest = text.substr(std::min(byte, text.size()));
    throw ConfigError(fmt::format("{}:{}: invalid JSON: {}.", path, line_at(text, byte),
                                  rest.empty() ? "the file ends too early" : "unexpected '" + shown(rest.substr(0, 20)) + "'"));
  } catch (const nlohmann::json::out_of_range&) {
    throw ConfigError(fmt::format("{}:1: a number is too large.", path));
  }
  if (!values.is_object()) throw ConfigError(fmt::format("{}:1: a configuration must be a mapping of keys to values.", path));
  return {std::move(values), key_lines(text)};
}

std::string shown(std::string_view text) { return escaped(text, kLongestShown); }

}  // namespace accelerate::detail
