#include "tokenizer.h"

#include <accelerate/core/error.h>

#include <algorithm>

#include "json_file.h"
#include "unicode_classes.h"
#include "utf8.h"

namespace models {
namespace {

using nlohmann::json;

/// What the pre-tokenizer "ByteLevel" cuts by when it is told to cut.
constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr int64_t kMostTokens = 10'000'000;

/// Matches, and what lies between them unless it is to be dropped.
std::vector<std::string_view> cut(std::string_view text, const SplitPattern& pattern, bool keeps_gaps) {
  const CodePoints points = code_points(text);
  std::vector<std::string_view> pieces;
  size_t done = 0;
  const auto add = [&](size_t first, size_t last) {
    if (first < last) pieces.push_back(text.substr(points.offsets[first], points.offsets[last] - points.offsets[first]));
  };
  for (const auto& match : pattern.matches(points.codes)) {
    if (keeps_gaps) add(done, match.first);
    add(match.first, match.second);
    done = match.second;
  }
  if (keeps_gaps) add(done, points.codes.size());
  return pieces;
}

/// How many bytes of white space a text ends or begins with.
size_t spaces_at_end(std::string_view text) {
  const CodePoints points = code_points(text);
  size_t kept = points.codes.size();
  while (kept > 0 && is_space(points.codes[kept - 1])) --kept;
  return text.size() - points.offsets[kept];
}

size_t spaces_at_begin(std::string_view text) {
  const CodePoints points = code_points(text);
  size_t count = 0;
  while (count < points.codes.size() && is_space(points.codes[count])) ++count;
  return points.offsets[count];
}

}  // namespace

/// Fills a tokenizer from the parts of its file.
struct Tokenizer::Reader {
  Tokenizer& into;
  std::string path;

  [[noreturn]] void fail(const std::string& what) const { throw accelerate::ConfigError(path + " " + what + "."); }

  [[noreturn]] void unknown(const std::string& part, const json& node) const {
    fail("has a " + part + " of the type '" + node.value("type", "?") + "', which is not supported; only byte-level BPE is");
  }

  static bool absent(const json& node, const char* key) { return !node.contains(key) || node.at(key).is_null(); }

  void read(const json& file) {
    if (!absent(file, "normalizer")) unknown("normalizer", file.at("normalizer"));
    read_model(file.at("model"));
    for (const auto& token : file.at("added_tokens")) read_added(token);
    std::stable_sort(into.added_.begin(), into.added_.end(),
                     [](const auto& a, const auto& b) { return a.content.size() > b.content.size(); });
    if (absent(file, "pre_tokenizer")) fail("has no pre_tokenizer; expected ByteLevel");
    bool byte_level = false;
    read_splits(file.at("pre_tokenizer"), byte_level);
    if (!byte_level) fail("has no pre_tokenizer ByteLevel");
    if (absent(file, "decoder") || file.at("decoder").at("type") != "ByteLevel") fail("has no decoder ByteLevel");
    if (!absent(file, "post_processor")) read_around(file.at("post_processor"));
  }

  void read_model(const json& model) {
    if (model.at("type") != "BPE") unknown("model", model);
    if (model.value("byte_fallback", false))
      fail("falls back to bytes (SentencePiece), which is not supported; only byte-level BPE is");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix", "unk_token", "dropout"}) {
      if (!absent(model, key) && model.at(key) != "") fail("has a model with '" + std::string(key) + "', which is not supported");
    }
    BytePairs::Vocabulary vocabulary;
    for (const auto& item : model.at("vocab").items()) {
      vocabulary[item.key()] = item.value().get<int64_t>();
      name(item.value().get<int64_t>(), item.key(), false);
    }
    std::vector<std::pair<std::string, std::string>> merges;
    for (const auto& merge : model.at("merges")) merges.push_back(merge_of(merge));
    into.model_ = BytePairs(std::move(vocabulary), merges, {.ignore_merges = model.value("ignore_merges", false)});
  }

  /// A pair, or in older files one text with a space between the two: no token of the alphabet has one.
  std::pair<std::string, std::string> merge_of(const json& merge) const {
    if (merge.is_array()) return {merge.at(0).get<std::string>(), merge.at(1).get<std::string>()};
    const auto text = merge.get<std::string>();
    const auto space = text.find(' ');
    if (space == std::string::npos) fail("has the merge '" + text + "'; expected two tokens");
    return {text.substr(0, space), text.substr(space + 1)};
  }

  void name(int64_t id, const std::string& text, bool special) const {
    if (id < 0 || id >= kMostTokens) fail("gives the token '" + text + "' the id " + std::to_string(id));
    if (into.size() <= id) into.tokens_.resize(static_cast<size_t>(id) + 1);
    into.tokens_[static_cast<size_t>(id)] = {text, true, special};
  }

  void read_added(const json& token) {
    const auto content = token.at("content").get<std::string>();
    if (token.value("single_word", false)) fail("has the token '" + content + "' only as a single word, which is not supported");
    if (content.empty()) return;
    const bool special = token.value("special", false);
    into.added_.push_back({token.at("id").get<int64_t>(), content, special, token.value("normalized", !special),
                           token.value("lstrip", false), token.value("rstrip", false)});
    name(into.added_.back().id, content, special);
  }

  void read_splits(const json& node, bool& byte_level) {
    const auto type = node.at("type").get<std::string>();
    if (type == "Sequence") {
      for (const auto& part : node.at("pretokenizers")) read_splits(part, byte_level);
    } else if (type == "Split" && !byte_level) {
      read_split(node);
    } else if (type == "ByteLevel" && !byte_level) {
      byte_level = true;
      into.add_prefix_space_ = node.value("add_prefix_space", true);
      if (into.add_prefix_space_ && !into.splits_.empty()) fail("puts a space before pieces that were cut already");
      if (node.value("use_regex", true)) into.splits_.push_back({SplitPattern(kGpt2Pattern), true});
    } else {
      unknown("pre_tokenizer", node);
    }
  }

  void read_split(const json& node) {
    const auto behavior = node.at("behavior").get<std::string>();
    const bool inverted = node.value("invert", false);
    const bool isolated = behavior == "Isolated", only_matches = behavior == "Removed" && inverted;
    if (!isolated && !only_matches) fail("splits by '" + behavior + "'; Isolated, and Removed with invert, are supported");
    if (!node.at("pattern").contains("Regex")) fail("splits by a string; only a Regex is supported");
    into.splits_.push_back({SplitPattern(node.at("pattern").at("Regex").get<std::string>()), isolated});
  }

  void read_around(const json& node) {
    const auto type = node.at("type").get<std::string>();
    if (type == "Sequence") {
      for (const auto& part : node.at("processors")) read_around(part);
    } else if (type == "TemplateProcessing") {
      auto* side = &into.before_;
      for (const auto& part : node.at("single")) {
        if (part.contains("Sequence")) {
          side = &into.behind_;
          continue;
        }
        const auto& ids = node.at("special_tokens").at(part.at("SpecialToken").at("id").get<std::string>()).at("ids");
        for (const auto& id : ids) side->push_back(id.get<int64_t>());
      }
    } else if (type != "ByteLevel") {  // which moves offsets alone
      unknown("post_processor", node);
    }
  }
};

Tokenizer::Tokenizer(const std::string& path) {
  const json file = read_json(path);
  try {
    Reader{*this, path}.read(file);
  } catch (const json::exception& error) {
    throw accelerate::ConfigError(path + " is not a tokenizer: " + error.what());
  }
}

const Tokenizer::AddedToken* Tokenizer::added_at(std::string_view text, size_t at, bool normalized) const {
  for (const auto& token : added_) {
    if (token.normalized == normalized && text.substr(at).starts_with(token.content)) return &token;
  }
  return nullptr;
}

std::vector<int64_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  code_points(text);  // throws when it is no text
  std::vector<int64_t> ids;
  if (options.add_special_tokens) ids = before_;
  encode_around(text, false, ids);
  if (options.add_special_tokens) ids.insert(ids.end(), behind_.begin(), behind_.end());
  return ids;
}

/// Tokens that are found in the text as it was given come first; a normalizer would work between the two kinds.
void Tokenizer::encode_around(std::string_view text, bool normalized, std::vector<int64_t>& ids) const {
  const auto plain = [&](std::string_view part) {
    if (part.empty()) return;
    normalized ? encode_plain(part, ids) : encode_around(part, true, ids);
  };
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = added_at(text, at, normalized);
    if (!token) {
      ++at;
      continue;
    }
    const auto between = text.substr(done, at - done);
    plain(token->strips_left ? between.substr(0, between.size() - spaces_at_end(between)) : between);
    ids.push_back(token->id);
    at += token->content.size();
    if (token->strips_right) at += spaces_at_begin(text.substr(at));
    done = at;
  }
  plain(text.substr(done));
}

void Tokenizer::encode_plain(std::string_view text, std::vector<int64_t>& ids) const {
  std::string prefixed;
  if (add_prefix_space_ && !text.starts_with(' ')) {
    prefixed = " " + std::string(text);
    text = prefixed;
  }
  Pieces pieces = {text};
  for (const auto& split : splits_) {
    Pieces cut_pieces;
    for (const auto piece : pieces) {
      const Pieces parts = cut(piece, split.pattern, split.keeps_gaps);
      cut_pieces.insert(cut_pieces.end(), parts.begin(), parts.end());
    }
    pieces = std::move(cut_pieces);
  }
  for (const auto piece : pieces) model_.encode(piece, ids);
}

std::string Tokenizer::decode(const std::vector<int64_t>& ids, const DecodeOptions& options) const {
  std::string bytes;
  for (const auto id : ids) {
    if (id < 0 || id >= size() || !tokens_[static_cast<size_t>(id)].known) {
      throw accelerate::UsageError("There is no token with the id " + std::to_string(id) + "; the tokenizer has " +
                                   std::to_string(size()) + ".");
    }
    const Token& token = tokens_[static_cast<size_t>(id)];
    if (!(token.special && options.skip_special_tokens)) bytes += BytePairs::bytes_of(token.text);
  }
  return with_replacements(bytes);
}

}  // namespace models
