#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace models {

/// Byte-level BPE: every byte has a character that can be printed, tokens are texts of these, and neighbours are merged in the
/// order of a table.
class BytePairs {
 public:
  using Vocabulary = std::unordered_map<std::string, int64_t>;
  struct Options {
    /// A piece that is a token as a whole is that token, whatever merges would give.
    bool ignore_merges = false;
  };

  BytePairs() = default;
  /// accelerate::ConfigError for a merge whose parts or whole are no tokens.
  BytePairs(Vocabulary vocabulary, const std::vector<std::pair<std::string, std::string>>& merges, Options options);

  /// Adds the tokens of a piece of text to `ids`. Bytes without a token are left out, as `tokenizers` leaves them out.
  void encode(std::string_view piece, std::vector<int64_t>& ids) const;

  /// The bytes that a token stands for; its own text when that is not of the alphabet.
  static std::string bytes_of(std::string_view token);

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    size_t rank;
    int64_t result;
  };
  struct PairHash {
    size_t operator()(const std::pair<int64_t, int64_t>& pair) const {
      return std::hash<uint64_t>()((static_cast<uint64_t>(pair.first) << 32) ^ static_cast<uint64_t>(pair.second));
    }
  };
  int64_t token(const std::string& text) const;
  void merge_into(std::vector<int64_t> symbols, std::vector<int64_t>& ids) const;
  const Merge* merge_of(int64_t left, int64_t right) const;

  Vocabulary vocabulary_;
  std::unordered_map<std::pair<int64_t, int64_t>, Merge, PairHash> merges_;
  std::array<int64_t, 256> byte_tokens_ = {};
  Options options_;
};

}  // namespace models
