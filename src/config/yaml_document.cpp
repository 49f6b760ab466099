#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include <accelerate/core/error.h>
#include "config/config_document.h"
#include "config/python_text.h"
#include "config/yaml_scalar.h"

namespace accelerate::detail {
namespace {

// Aliases can blow up a short file: the size after expansion is bounded.
constexpr int kDeepest = 64;
constexpr size_t kMostValues = 20000;
constexpr size_t kMostBytes = 1u << 20;

constexpr std::string_view kTagPrefix = "tag:yaml.org,2002:";

std::optional<YamlKind> kind_of_tag(std::string_view name) {
  if (name == "str") return YamlKind::text;
  if (name == "null") return YamlKind::null;
  if (name == "bool") return YamlKind::flag;
  if (name == "int") return YamlKind::integer;
  if (name == "float") return YamlKind::number;
  if (name == "timestamp") return YamlKind::timestamp;
  return std::nullopt;
}

/// yaml-cpp makes single bytes of the escapes `\N` and `\_`, which are no UTF-8. A byte that continues nothing is one of them.
std::string repaired(const std::string& text) {
  std::string whole;
  size_t following = 0;  // bytes that still belong to the character that began
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool continues = (byte & 0xc0) == 0x80;
    if (continues && following == 0) whole += '\xc2';
    following = continues ? following - (following > 0) : byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : byte >= 0xc0 ? 1 : 0;
    whole += c;
  }
  return whole;
}

/// Of several line breaks at the end of a single-quoted text yaml-cpp loses one. `source` begins with the text's opening quote.
void restore_last_breaks(std::string& text, std::string_view source) {
  if (!source.starts_with('\'')) return;
  size_t close = source.find('\'', 1);
  while (close != std::string_view::npos && source.substr(close, 2) == "''") close = source.find('\'', close + 2);
  if (close == std::string_view::npos) return;
  const std::string_view inside = source.substr(1, close - 1);
  const std::string_view blanks = inside.substr(inside.find_last_not_of(" \t\r\n") + 1);
  const auto breaks = std::count(blanks.begin(), blanks.end(), '\n');
  if (breaks < 2) return;  // a single one is folded into a space
  text.erase(text.find_last_not_of('\n') + 1);
  text.append(static_cast<size_t>(breaks - 1), '\n');
}

/// Converts nodes to values, and counts them.
class NodeReader {
 public:
  NodeReader(std::string_view source, const std::string& path) : source_(source), path_(path) {}

  [[noreturn]] void refuse(const YAML::Mark& mark, const std::string& problem) const {
    throw ConfigError(fmt::format("{}:{}: {}", path_, std::max(mark.line, 0) + 1, problem));
  }

  /// The keys of `mapping`, and of what is merged into it, with their values.
  void read_mapping(const YAML::Node& mapping, int depth, ConfigDocument& into) {
    check_tag(mapping, "map");
    enter(mapping, depth);
    // Keys of the mapping itself win over merged ones, wherever the merge key stands.
    for (const auto& item : mapping) {
      if (is_merge(item.first)) merge(item.second, depth, into);
    }
    for (const auto& item : mapping) {
      if (is_merge(item.first)) continue;
      const std::string key = key_of(item.first);
      into.values[key] = read(item.second, depth + 1);
      into.lines[key] = item.first.Mark().line + 1;
    }
  }

 private:
  static bool is_merge(const YAML::Node& key) { return key.IsScalar() && key.Tag() == "?" && key.Scalar() == "<<"; }

  void merge(const YAML::Node& source, int depth, ConfigDocument& into) {
    if (source.IsMap()) return read_mapping(source, depth + 1, into);
    if (!source.IsSequence()) refuse(source.Mark(), "'<<' merges a mapping or a list of mappings.");
    enter(source, depth + 1);
    // Of several, the first one wins.
    for (size_t i = source.size(); i-- > 0;) {
      if (!source[i].IsMap()) refuse(source[i].Mark(), "'<<' merges mappings, but this is not a mapping.");
      read_mapping(source[i], depth + 2, into);
    }
  }

  std::string key_of(const YAML::Node& key) {
    if (key.IsNull()) return "null";
    if (!key.IsScalar()) refuse(key.Mark(), "a key must be a string, not a list or a mapping.");
    enter(key, 0);
    return text_of(key);
  }

  nlohmann::json read(const YAML::Node& node, int depth) {
    if (node.IsMap()) {
      ConfigDocument nested;
      read_mapping(node, depth, nested);
      return std::move(nested.values);
    }
    if (!node.IsSequence()) return read_scalar(node, depth);
    check_tag(node, "seq");
    enter(node, depth);
    nlohmann::json list = nlohmann::json::array();
    for (const auto& item : node) list.push_back(read(item, depth + 1));
    return list;
  }

  nlohmann::json read_scalar(const YAML::Node& node, int depth) {
    enter(node, depth);
    if (!node.IsScalar()) return nullptr;
    const std::string& tag = node.Tag();
    const std::string text = text_of(node);
    YamlKind kind = YamlKind::text;  // of what is quoted
    if (tag == "?" || tag.empty()) kind = yaml_kind(text);
    if (tag.starts_with(kTagPrefix)) {
      const auto tagged = kind_of_tag(std::string_view(tag).substr(kTagPrefix.size()));
      if (!tagged) refuse_tag(node);
      kind = *tagged;
    } else if (tag.size() > 1) {
      refuse_tag(node);
    }
    try {
      return yaml_value(kind, text);
    } catch (const ConfigError& error) {
      refuse(node.Mark(), std::string(error.what()) + ".");
    }
  }

  std::string text_of(const YAML::Node& node) const {
    std::string text = repaired(node.Scalar());
    const int place = node.Mark().pos;
    if (node.Tag() == "!" && place >= 0)
      restore_last_breaks(text, source_.substr(std::min(static_cast<size_t>(place), source_.size())));
    return text;
  }

  void check_tag(const YAML::Node& node, std::string_view allowed) const {
    const std::string& tag = node.Tag();
    if (tag.size() > 1 && tag != std::string(kTagPrefix) + std::string(allowed)) refuse_tag(node);
  }

  [[noreturn]] void refuse_tag(const YAML::Node& node) const {
    refuse(node.Mark(), fmt::format("the tag {} is not supported; write the plain value.", shown(node.Tag())));
  }

  void enter(const YAML::Node& node, int depth) {
    if (depth > kDeepest) refuse(node.Mark(), fmt::format("more than {} levels of nesting, or a recursive alias.", kDeepest));
    bytes_ += node.IsScalar() ? node.Scalar().size() : 0;
    if (++values_ > kMostValues || bytes_ > kMostBytes) {
      refuse(node.Mark(), fmt::format("with aliases expanded, the file holds more than {} values or 1 MiB.", kMostValues));
    }
  }

  std::string_view source_;
  const std::string& path_;
  size_t values_ = 0, bytes_ = 0;
};

/// Rejects a second document where it begins. yaml-cpp's own list of documents may never end: it does not stop at errors.
class SingleDocument : public YAML::EventHandler {
 public:
  explicit SingleDocument(const NodeReader& reader) : reader_(reader) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) reader_.refuse(mark, "a second document begins here; expected a single YAML document.");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  const NodeReader& reader_;
  int documents_ = 0;
};

YAML::Node load_single_document(const std::string& text, const NodeReader& reader) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  SingleDocument events(reader);
  for (int document = 0; document < 2 && parser.HandleNextDocument(events); ++document) {
  }
  return YAML::Load(text);
}

/// PyYAML rejects these characters anywhere, and so do we, before parsing.
void check_characters(std::string_view text, const std::string& path) {
  int line = 1;
  for (const char32_t point : code_points(text)) {
    const bool printable = point == '\t' || point == '\n' || point == '\r' || (point >= 0x20 && point <= 0x7e) || point == 0x85 ||
                           (point >= 0xa0 && point != 0xfffe && point != 0xffff);
    if (!printable) {
      const auto code = static_cast<uint32_t>(point);
      throw ConfigError(fmt::format("{}:{}: the control character 0x{:02x} has no place in a configuration.", path, line, code));
    }
    line += point == '\n';
  }
}

}  // namespace

ConfigDocument read_yaml_document(std::string_view text, const std::string& path) {
  check_characters(text, path);
  NodeReader reader(text, path);
  // yaml-cpp takes the end of the file for a closing quote, but not the mark of a document's end.
  const std::string marked = std::string(text) + (text.ends_with('\n') ? "...\n" : "\n...\n");
  YAML::Node root;
  try {
    root = load_single_document(marked, reader);
  } catch (const YAML::Exception& error) {
    if (error.mark.pos >= static_cast<int>(text.size())) reader.refuse(error.mark, "invalid YAML: the file ends too early.");
    reader.refuse(error.mark, fmt::format("invalid YAML: {}.", error.msg));
  }
  if (!root.IsDefined() || root.IsNull()) {
    throw ConfigError(fmt::format("{}:1: the file is empty. `accelerate config` writes a configuration.", path));
  }
  if (!root.IsMap()) reader.refuse(root.Mark(), "a configuration must be a mapping of keys to values.");
  ConfigDocument document;
  reader.read_mapping(root, 0, document);
  return document;
}

}  // namespace accelerate::detail
