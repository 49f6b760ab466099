#include "split_pattern.h"

#include <accelerate/core/error.h>

#include <limits>

#include "unicode_classes.h"
#include "utf8.h"

namespace models {
// What a pattern is made of has names of its own instead of none: its root is a member of a class that others see.
namespace pattern {

/// Letters in lower case, as far as patterns of tokenizers write any: ASCII, and the two signs whose lower case lies there.
inline char32_t folded(char32_t code) {
  if (code >= U'A' && code <= U'Z') return code - U'A' + U'a';
  if (code == 0x17f) return U's';
  if (code == 0x212a) return U'k';
  return code;
}

/// Characters: ranges and classes, or all but these.
struct CharacterSet {
  struct Class {
    bool (*holds)(char32_t);
    bool negated;
  };
  std::vector<std::pair<char32_t, char32_t>> ranges;
  std::vector<Class> classes;
  bool negated = false;
  bool ignore_case = false;

  bool contains(char32_t code) const { return has(code) != negated; }

 private:
  bool has(char32_t code) const {
    for (const auto& [first, last] : ranges) {
      if (code >= first && code <= last) return true;
      if (ignore_case && folded(code) >= folded(first) && folded(code) <= folded(last)) return true;
    }
    for (const auto& [holds, but_not] : classes) {
      if (holds(code) != but_not) return true;
    }
    return false;
  }
};

struct Element;

}  // namespace pattern

/// One branch fits, the first that lets the rest fit too.
struct SplitPattern::Alternatives {
  std::vector<std::vector<pattern::Element>> branches;
};

struct pattern::Element {
  enum class Kind { set, group, ahead, not_ahead };
  Kind kind = Kind::set;
  CharacterSet set = {};
  std::shared_ptr<const SplitPattern::Alternatives> inside = {};
  size_t least = 1, most = 1;
};

namespace {

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

using Alternatives = SplitPattern::Alternatives;
using pattern::CharacterSet;
using pattern::Element;
using Kind = Element::Kind;

class PatternParser {
 public:
  explicit PatternParser(std::string_view pattern) : text_(pattern), codes_(code_points(pattern).codes) {}

  std::shared_ptr<const Alternatives> parse() {
    auto result = alternatives(false);
    if (at_ < codes_.size()) fail("an unmatched )");
    return result;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw accelerate::ConfigError("The pattern " + std::string(text_) + " has at character " + std::to_string(at_) + " " + what +
                                  ", which this tokenizer does not support.");
  }

  bool take(std::u32string_view wanted) {
    if (std::u32string_view(codes_).substr(at_, wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }

  char32_t next() {
    if (at_ >= codes_.size()) fail("an unexpected end");
    return codes_[at_++];
  }

  std::shared_ptr<const Alternatives> alternatives(bool ignore_case) {
    auto result = std::make_shared<Alternatives>();
    do {
      auto& branch = result->branches.emplace_back();
      while (at_ < codes_.size() && codes_[at_] != U'|' && codes_[at_] != U')') branch.push_back(repeated(ignore_case));
    } while (take(U"|"));
    return result;
  }

  Element repeated(bool ignore_case) {
    Element element = single(ignore_case);
    if (take(U"?")) {
      element.least = 0;
    } else if (take(U"*")) {
      element.least = 0, element.most = kNoLimit;
    } else if (take(U"+")) {
      element.most = kNoLimit;
    } else if (take(U"{")) {
      element.least = element.most = number();
      if (take(U",")) element.most = at_ < codes_.size() && codes_[at_] == U'}' ? kNoLimit : number();
      if (!take(U"}") || element.most < element.least) fail("an invalid { }");
    }
    if (element.kind != Kind::set && element.most > 1) fail("a repeated group");
    if (at_ < codes_.size() && std::u32string_view(U"?*+{").find(codes_[at_]) != std::u32string_view::npos) {
      fail("a second quantifier");
    }
    return element;
  }

  size_t number() {
    size_t value = 0, digits = 0;
    for (; at_ < codes_.size() && codes_[at_] >= U'0' && codes_[at_] <= U'9' && digits < 6; ++digits) {
      value = value * 10 + (codes_[at_++] - U'0');
    }
    if (digits == 0) fail("no number");
    return value;
  }

  Element single(bool ignore_case) {
    if (take(U"(?:")) return group(Kind::group, ignore_case);
    if (take(U"(?i:")) return group(Kind::group, true);
    if (take(U"(?=")) return group(Kind::ahead, ignore_case);
    if (take(U"(?!")) return group(Kind::not_ahead, ignore_case);
    if (take(U"(?")) fail("a special group (?...)");
    if (take(U"(")) return group(Kind::group, ignore_case);
    Element element;
    element.set.ignore_case = ignore_case;
    if (take(U"[")) {
      fill_set(element.set);
      return element;
    }
    if (std::u32string_view(U".^$*+?{").find(codes_[at_]) != std::u32string_view::npos) fail("one of . ^ $ * + ? {");
    add_character(element.set);
    return element;
  }

  Element group(Kind kind, bool ignore_case) {
    if (++depth_ > 50) fail("groups nested deeper than 50");  // each is a call within a call
    Element element;
    element.kind = kind;
    element.inside = alternatives(ignore_case);
    if (!take(U")")) fail("an unterminated group");
    --depth_;
    return element;
  }

  void fill_set(CharacterSet& set) {
    set.negated = take(U"^");
    while (!take(U"]")) {
      if (at_ < codes_.size() && codes_[at_] == U'[') fail("a nested set");
      const bool one_character = add_character(set);
      if (!one_character || at_ + 1 >= codes_.size() || codes_[at_] != U'-' || codes_[at_ + 1] == U']') continue;
      ++at_;
      const char32_t first = set.ranges.back().first;
      if (!add_character(set) || set.ranges.back().first < first) fail("an invalid range");
      set.ranges.back().first = first;
    }
  }

  /// A character or a class; true for a character.
  bool add_character(CharacterSet& set) {
    char32_t code = next();
    if (code == U'\\') {
      code = next();
      if (code == U'p' || code == U'P') return add_property(set, code == U'P'), false;
      if (code == U's' || code == U'S') return set.classes.push_back({is_space, code == U'S'}), false;
      if (code == U'r')
        code = U'\r';
      else if (code == U'n')
        code = U'\n';
      else if (code == U't')
        code = U'\t';
      else if (is_letter(code) || is_number(code))
        fail("an unsupported escape (supported: r n t s S p P)");
    }
    set.ranges.emplace_back(code, code);
    return true;
  }

  void add_property(CharacterSet& set, bool negated) {
    if (take(U"{L}"))
      set.classes.push_back({is_letter, negated});
    else if (take(U"{N}"))
      set.classes.push_back({is_number, negated});
    else
      fail("a property other than {L} and {N}");
  }

  std::string_view text_;
  std::u32string codes_;
  size_t at_ = 0;
  int depth_ = 0;
};

/// What is still to fit: the elements of a branch from one on, then what stands behind the group that the branch is of.
struct Rest {
  const std::vector<Element>* branch;
  size_t index;
  const Rest* behind;
};

/// Matching by going back. Repetition is a loop, so the depth of calls is that of the pattern however long the text is.
class Matcher {
 public:
  explicit Matcher(std::u32string_view text) : text_(text) {}

  /// Where the match that begins at `at` ends.
  std::optional<size_t> first_of(const Alternatives& alternatives, size_t at, const Rest* behind = nullptr) const {
    for (const auto& branch : alternatives.branches) {
      const Rest rest{&branch, 0, behind};
      if (const auto end = end_of(&rest, at)) return end;
    }
    return std::nullopt;
  }

 private:
  std::optional<size_t> end_of(const Rest* rest, size_t at) const {
    while (rest && rest->index == rest->branch->size()) rest = rest->behind;
    if (!rest) return at;
    const Element& element = (*rest->branch)[rest->index];
    const Rest after{rest->branch, rest->index + 1, rest->behind};
    if (element.kind == Kind::set) return end_of_set(element, after, at);
    if (element.kind == Kind::group) {
      if (const auto end = first_of(*element.inside, at, &after)) return end;
      return element.least == 0 ? end_of(&after, at) : std::nullopt;
    }
    const bool ahead = first_of(*element.inside, at).has_value();
    return ahead == (element.kind == Kind::ahead) ? end_of(&after, at) : std::nullopt;
  }

  std::optional<size_t> end_of_set(const Element& element, const Rest& after, size_t at) const {
    size_t count = 0;
    while (count < element.most && at + count < text_.size() && element.set.contains(text_[at + count])) ++count;
    for (; count + 1 > element.least; --count) {
      if (const auto end = end_of(&after, at + count)) return end;
      if (count == 0) break;
    }
    return std::nullopt;
  }

  std::u32string_view text_;
};

}  // namespace

SplitPattern::SplitPattern(std::string_view pattern) : root_(PatternParser(pattern).parse()) {}

std::vector<std::pair<size_t, size_t>> SplitPattern::matches(std::u32string_view text) const {
  std::vector<std::pair<size_t, size_t>> result;
  const Matcher matcher(text);
  for (size_t at = 0; at < text.size();) {
    const auto end = matcher.first_of(*root_, at);
    if (end && *end > at) {
      result.emplace_back(at, *end);
      at = *end;
    } else {
      ++at;
    }
  }
  return result;
}

}  // namespace models
