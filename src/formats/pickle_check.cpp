#include <algorithm>
#include <deque>
#include <vector>

#include "core/escaped.h"
#include "formats/pickle_machine.h"

namespace accelerate::detail {
namespace {

constexpr size_t kDeepest = 400;
/// Values may be shared, but not so often that a reader who follows every reference meets far more than the file can hold.
constexpr uint64_t kMostUnfolding = 64, kFreeUnfolding = 100'000;
/// Marks of nodes that the walk has met: it is inside, it was there once, and from the third on the place of the facts.
constexpr uint32_t kOpen = 1, kSeen = 2, kFacts = 3;
/// Keys that differ take three bytes and more each once the short ones are used up, and their values one.
constexpr size_t kBytesOfAnItem = 4, kShortKeys = 65'536;

/// Visits all reachable values, each at most twice however often it is referenced: most are needed only once, so facts about a
/// value are cached only when it is visited again.
class PickleWalk {
 public:
  PickleWalk(const PickleMachine& machine, size_t pickle_size) : machine_(machine), pickle_size_(pickle_size) {}

  struct Facts {
    uint64_t unfolded = 1, hash = 0;
    uint32_t height = 0;
    bool hashable = true;
  };

  Facts walk(PickleNode& node, size_t depth) {
    if (!is_container(node) && node.kind != PickleKind::kText) return leaf(node);
    if (node.mark == kOpen) machine_.fail("a value contains itself");
    if (node.mark >= kFacts) {
      const Facts& facts = facts_[node.mark - kFacts];
      if (facts.height + depth > kDeepest) too_deep();
      return facts;
    }
    if (depth > kDeepest) too_deep();
    const bool again = node.mark == kSeen && facts_.size() < UINT32_MAX - kFacts;
    node.mark = kOpen;
    const Facts facts = node.is(PickleKind::kText) ? leaf(node) : inside(node, depth);
    node.mark = again ? kFacts + static_cast<uint32_t>(facts_.size()) : kSeen;
    if (again) facts_.push_back(facts);
    return facts;
  }

 private:
  [[noreturn]] void too_deep() const {
    machine_.fail("its values are nested deeper than " + std::to_string(kDeepest) + " levels");
  }

  static bool is_container(const PickleNode& node) { return node.is_row() || node.is_dict() || node.is(PickleKind::kObject); }

  Facts leaf(const PickleNode& node) const {
    if (node.is(PickleKind::kGlobal)) machine_.fail("the class or function " + escaped(node.text(), 120) + " is used as a value");
    if (node.is(PickleKind::kStorage)) machine_.fail("a storage without a tensor");
    if (node.is(PickleKind::kArray) && node.array().bytes == nullptr) machine_.fail("a numpy array without content");
    Facts facts;
    facts.hashable = !node.is(PickleKind::kByteArray) && !node.is(PickleKind::kTensor) && !node.is(PickleKind::kArray);
    facts.hash = hash_of(node);
    return facts;
  }

  static uint64_t hash_of(const PickleNode& node) {
    const uint64_t kind = static_cast<uint64_t>(node.kind) * 0x9e3779b97f4a7c15;
    if (std::holds_alternative<std::unique_ptr<std::string>>(node.data)) return kind ^ std::hash<std::string>{}(node.text());
    if (const auto* flag = std::get_if<bool>(&node.data)) return std::hash<double>{}(*flag ? 1.0 : 0.0);  // True is 1 is 1.0
    if (const auto* real = std::get_if<double>(&node.data)) return std::hash<double>{}(*real);
    if (const auto* integer = std::get_if<int64_t>(&node.data)) {
      const auto real = static_cast<double>(*integer);
      return std::abs(real) < 0x1p53 ? std::hash<double>{}(real) : kind ^ std::hash<int64_t>{}(*integer);
    }
    return kind ^ std::hash<const void*>{}(&node);
  }

  void add(Facts& facts, const Facts& child) const {
    if (__builtin_add_overflow(facts.unfolded, child.unfolded, &facts.unfolded)) facts.unfolded = UINT64_MAX;
    facts.height = std::max(facts.height, child.height + 1);
    facts.hash = (facts.hash ^ child.hash) * 0x100000001b3 + 0x9e3779b9;
  }

  Facts inside(PickleNode& node, size_t depth) {
    Facts facts;
    facts.hash = static_cast<uint64_t>(node.kind);
    facts.hashable = node.is(PickleKind::kTuple) || node.is(PickleKind::kFrozenSet) || node.is(PickleKind::kSize);
    if (node.is(PickleKind::kObject)) {
      walk_object(node.object(), depth, facts);
    } else if (node.is_dict()) {
      walk_dict(node.dict(), depth, facts);
    } else {
      for (PickleNode* item : node.items()) {
        const Facts child = walk(*item, depth + 1);
        facts.hashable = facts.hashable && child.hashable;
        add(facts, child);
      }
    }
    return facts;
  }

  void walk_object(const PickleObject& object, size_t depth, Facts& facts) {
    if (object.name == "numpy.dtype") machine_.fail("a numpy dtype without an array");
    for (PickleNode* part : {object.arguments, object.state}) {
      if (part != nullptr) add(facts, walk(*part, depth + 1));
    }
    facts.hashable = true;  // such objects are keys of dicts where their classes say so
  }

  void walk_dict(const PickleDict& dict, size_t depth, Facts& facts) {
    std::vector<uint64_t> keys;
    if (dict.items.size() > pickle_size_ / kBytesOfAnItem + kShortKeys) machine_.fail("a dict has a duplicate key");
    keys.reserve(dict.items.size());
    for (const auto& [key, value] : dict.items) {
      const Facts name = walk(*key, depth + 1);
      if (!name.hashable) machine_.fail("a dict has " + std::string(to_string(key->kind)) + " as a key");
      keys.push_back(name.hash);
      add(facts, name);
      add(facts, walk(*value, depth + 1));
    }
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) same_key(dict, *twice, depth);
    if (dict.attributes != nullptr) add(facts, walk(*dict.attributes, depth + 1));
  }

  [[noreturn]] void same_key(const PickleDict& dict, uint64_t hash, size_t depth) {
    for (const auto& [key, value] : dict.items) {
      if (key->is(PickleKind::kText) && walk(*key, depth + 1).hash == hash)
        machine_.fail("a dict has a duplicate key: " + escaped(key->text(), 120));
    }
    machine_.fail("a dict has a duplicate key");
  }

  const PickleMachine& machine_;
  const size_t pickle_size_;
  std::deque<Facts> facts_;
};

/// Continuation bytes that follow a first byte, or -1.
int continuation_bytes(unsigned char first) {
  if (first < 0x80) return 0;
  if (first < 0xC2) return -1;
  if (first < 0xE0) return 1;
  if (first < 0xF0) return 2;
  return first < 0xF5 ? 3 : -1;
}

}  // namespace

void check_pickled_value(const PickleMachine& machine, PickleNode& root, size_t pickle_size) {
  const auto facts = PickleWalk(machine, pickle_size).walk(root, 0);
  if (facts.unfolded > std::max(kMostUnfolding * pickle_size, kFreeUnfolding))
    machine.fail("its shared references expand to far more values than the file can hold (a reference bomb)");
}

bool is_pickled_text(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto first = static_cast<unsigned char>(bytes[i]);
    const int more = continuation_bytes(first);
    if (more < 0 || static_cast<size_t>(more) > bytes.size() - i - 1) return false;
    for (int j = 1; j <= more; ++j) {
      const auto next = static_cast<unsigned char>(bytes[i + static_cast<size_t>(j)]);
      if ((next & 0xC0) != 0x80) return false;
      // Not the shortest form, or beyond the last code point.
      if (j == 1 && ((first == 0xE0 && next < 0xA0) || (first == 0xF0 && next < 0x90) || (first == 0xF4 && next > 0x8F)))
        return false;
    }
    i += static_cast<size_t>(more);
  }
  return true;
}

}  // namespace accelerate::detail
