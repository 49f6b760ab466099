#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "byte_pairs.h"
#include "split_pattern.h"

namespace models {

struct EncodeOptions {
  /// The tokens that the model expects around a text, such as one that begins it.
  bool add_special_tokens = true;
};

struct DecodeOptions {
  /// Leaves special tokens out.
  bool skip_special_tokens = true;
};

/// Text to token ids and back, by the tokenizer.json of a model with byte-level BPE (GPT-2, Llama 3 and many others). The ids are
/// those of the package `tokenizers`.
class Tokenizer {
 public:
  /// Reads tokenizer.json. accelerate::ConfigError names what is wrong, or of a kind that is not known here.
  explicit Tokenizer(const std::string& path);

  /// accelerate::UsageError when `text` is not UTF-8.
  std::vector<int64_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// Bytes that are no characters become U+FFFD. accelerate::UsageError for an id that is no token.
  std::string decode(const std::vector<int64_t>& ids, const DecodeOptions& options = {}) const;

  /// One more than the highest id.
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  /// A token that is found in the text as it stands, before anything else is done with it.
  struct AddedToken {
    int64_t id;
    std::string content;
    bool special, normalized, strips_left, strips_right;
  };
  /// A step of cutting.
  struct Split {
    SplitPattern pattern;
    bool keeps_gaps;
  };
  struct Reader;
  using Pieces = std::vector<std::string_view>;

  void encode_plain(std::string_view text, std::vector<int64_t>& ids) const;
  void encode_around(std::string_view text, bool normalized, std::vector<int64_t>& ids) const;
  const AddedToken* added_at(std::string_view text, size_t at, bool normalized) const;

  BytePairs model_;
  std::vector<AddedToken> added_;  // the longest first
  std::vector<Split> splits_;
  bool add_prefix_space_ = false;
  std::vector<int64_t> before_, behind_;  // around every text

  struct Token {
    std::string text;
    bool known = false, special = false;
  };
  std::vector<Token> tokens_;  // by id
};

}  // namespace models
