#include "sharding/deepspeed_document.h"

#include <accelerate/core/error.h>

#include <filesystem>
#include <optional>
#include <string_view>

#include "config/config_document.h"
#include "config/config_file.h"
#include "sharding/variable_values.h"

namespace accelerate::detail {
namespace {

constexpr const char* kDocumentVariable = "ACCELERATE_DEEPSPEED_CONFIG_FILE";
/// No real configuration is this large; it would only keep the parser busy.
constexpr size_t kLargestDocument = 1u << 20;

/// The bytes of url-safe base64, padding required as in Python; nothing when it is no base64.
std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t digit = i + padding < text.size() ? kDigits.find(text[i]) : 0;
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if (i % 4 != 3) continue;
    for (const int shift : {16, 8, 0}) bytes.push_back(static_cast<char>(bits >> shift & 0xff));
    bits = 0;
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

nlohmann::json parsed(std::string_view text, const std::string& name) {
  if (text.size() > kLargestDocument) throw ConfigError(name + ": a DeepSpeed configuration must not be larger than 1 MiB.");
  return read_json_document(text, name).values;
}

}  // namespace

nlohmann::json read_deepspeed_document(const std::string& given) {
  std::error_code problem;
  if (std::filesystem::exists(given, problem)) return parsed(read_config_text(given), given);
  if (without_blanks(given).starts_with('{')) return parsed(given, kDocumentVariable);
  if (const auto decoded = from_base64(without_blanks(given))) {
    try {
      return parsed(*decoded, std::string(kDocumentVariable) + " in base64");
    } catch (const ConfigError&) {
      // A misspelt path may be base64 by chance: it is told below.
    }
  }
  refuse_variable(kDocumentVariable, given, "the path of a file that exists, JSON, or JSON in url-safe base64");
}

nlohmann::json deepspeed_value(const nlohmann::json& document, const std::string& path) {
  const nlohmann::json* node = &document;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    if (!node->is_object())
      throw ConfigError("DeepSpeed's " + path.substr(0, begin - 1) + " is " + shown(node->dump()) +
                        ": expected a section, in {}.");
    const auto found = node->find(path.substr(begin, end - begin));
    if (found == node->end() || found->is_null()) return nullptr;
    node = &*found;
    begin = end + 1;
  }
  return *node;
}

void fill_auto(nlohmann::json& document, const std::string& path, const nlohmann::json& value) {
  if (deepspeed_value(document, path) != "auto") return;
  std::string pointer = "/" + path;
  for (char& c : pointer) c = c == '.' ? '/' : c;
  document[nlohmann::json::json_pointer(pointer)] = value;
}

}  // namespace accelerate::detail
