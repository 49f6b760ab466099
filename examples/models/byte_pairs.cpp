#include "byte_pairs.h"

#include <accelerate/core/error.h>

#include <queue>

#include "utf8.h"

namespace models {
namespace {

/// The character of each byte: itself where it can be printed, else one from 256 on.
const std::array<char32_t, 256>& alphabet() {
  static const std::array<char32_t, 256> kAlphabet = [] {
    std::array<char32_t, 256> result{};
    char32_t next = 256;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool printed = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
      result[byte] = printed ? byte : next++;
    }
    return result;
  }();
  return kAlphabet;
}

const std::unordered_map<char32_t, char>& bytes_by_character() {
  static const std::unordered_map<char32_t, char> kBytes = [] {
    std::unordered_map<char32_t, char> result;
    for (size_t byte = 0; byte < 256; ++byte) result[alphabet()[byte]] = static_cast<char>(byte);
    return result;
  }();
  return kBytes;
}

/// Two neighbours that may be merged. The lowest rank comes first, then the leftmost.
struct Candidate {
  size_t rank, left, right;
  int64_t left_id, right_id;
  bool operator<(const Candidate& other) const { return std::pair(rank, left) > std::pair(other.rank, other.left); }
};

constexpr size_t kNone = static_cast<size_t>(-1);

}  // namespace

BytePairs::BytePairs(Vocabulary vocabulary, const std::vector<std::pair<std::string, std::string>>& merges, Options options)
    : vocabulary_(std::move(vocabulary)), options_(options) {
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto found = vocabulary_.find(utf8_of(alphabet()[byte]));
    byte_tokens_[byte] = found == vocabulary_.end() ? -1 : found->second;
  }
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const std::pair parts{token(left), token(right)};  // braces: the left one is looked for first
    merges_.try_emplace(parts, Merge{rank, token(left + right)});
  }
}

int64_t BytePairs::token(const std::string& text) const {
  const auto found = vocabulary_.find(text);
  if (found != vocabulary_.end()) return found->second;
  throw accelerate::ConfigError("The merges of the tokenizer name '" + text + "', which its vocabulary does not have.");
}

const BytePairs::Merge* BytePairs::merge_of(int64_t left, int64_t right) const {
  const auto found = merges_.find({left, right});
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairs::encode(std::string_view piece, std::vector<int64_t>& ids) const {
  if (options_.ignore_merges) {
    std::string text;
    for (const char byte : piece) text += utf8_of(alphabet()[static_cast<unsigned char>(byte)]);
    const auto found = vocabulary_.find(text);
    if (found != vocabulary_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  std::vector<int64_t> symbols;
  for (const char byte : piece) {
    const int64_t id = byte_tokens_[static_cast<unsigned char>(byte)];
    if (id >= 0) symbols.push_back(id);
  }
  merge_into(std::move(symbols), ids);
}

void BytePairs::merge_into(std::vector<int64_t> symbols, std::vector<int64_t>& ids) const {
  // A list with a heap of what may be merged: a piece may be a whole page of text without a space.
  std::vector<size_t> before(symbols.size()), behind(symbols.size());
  std::priority_queue<Candidate> candidates;
  const auto offer = [&](size_t left, size_t right) {
    if (left == kNone || right == kNone) return;
    if (const auto* merge = merge_of(symbols[left], symbols[right])) {
      candidates.push({merge->rank, left, right, symbols[left], symbols[right]});
    }
  };
  for (size_t i = 0; i < symbols.size(); ++i) {
    before[i] = i == 0 ? kNone : i - 1;
    behind[i] = i + 1 == symbols.size() ? kNone : i + 1;
    offer(before[i], i);
  }
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    // One of the two may have been merged with another since.
    if (symbols[best.left] != best.left_id || symbols[best.right] != best.right_id || behind[best.left] != best.right) continue;
    symbols[best.left] = merge_of(best.left_id, best.right_id)->result;
    symbols[best.right] = -1;
    behind[best.left] = behind[best.right];
    if (behind[best.left] != kNone) before[behind[best.left]] = best.left;
    offer(before[best.left], best.left);
    offer(best.left, behind[best.left]);
  }
  for (const auto id : symbols) {
    if (id >= 0) ids.push_back(id);
  }
}

std::string BytePairs::bytes_of(std::string_view token) {
  std::string bytes;
  for (const char32_t code : code_points(token).codes) {
    const auto found = bytes_by_character().find(code);
    if (found == bytes_by_character().end()) return std::string(token);
    bytes += found->second;
  }
  return bytes;
}

}  // namespace models
