#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace models {

/// A regular expression that cuts text into pieces, of the kind that tokenizer.json has: alternatives, groups (?:…) and (?i:…),
/// (?=…) and (?!…), sets with \p{L}, \p{N}, \s and their opposites, and ? * + {m,n} behind characters and sets (? also behind
/// groups). std::regex knows no classes of Unicode.
class SplitPattern {
 public:
  /// accelerate::ConfigError names the place of what is not understood.
  explicit SplitPattern(std::string_view pattern);

  /// First and last-but-one of each match, from left to right; matches of nothing are passed over.
  std::vector<std::pair<size_t, size_t>> matches(std::u32string_view text) const;

  struct Alternatives;

 private:
  std::shared_ptr<const Alternatives> root_;
};

}  // namespace models
