#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace accelerate {

namespace detail {
[[noreturn]] void throw_no_entry(const std::string& key);
}

/// A map that keeps insertion order, like Python's dict.
template <typename Key, typename Value>
requires std::equality_comparable<Key> && std::default_initializable<Value>
class OrderedMap {
 public:
  using Item = std::pair<Key, Value>;
  using key_type = Key;
  using mapped_type = Value;
  using value_type = Item;

  OrderedMap() = default;
  /// Of equal keys, the last value wins.
  OrderedMap(std::initializer_list<Item> items) {
    for (const auto& [key, value] : items) (*this)[key] = value;
  }

  /// The value of `key`, or nullptr when there is none.
  const Value* find(const Key& key) const {
    const auto found = positions_.find(key);
    return found == positions_.end() ? nullptr : &items_[found->second].second;
  }
  /// The value of `key`; UsageError when there is none.
  const Value& at(const Key& key) const {
    if (const Value* value = find(key)) return *value;
    if constexpr (std::convertible_to<const Key&, std::string>) {
      detail::throw_no_entry(key);
    } else {
      detail::throw_no_entry(to_string(key));
    }
  }
  /// The value of `key`, inserted if there is none.
  Value& operator[](const Key& key) {
    const auto [found, is_new] = positions_.try_emplace(key, items_.size());
    if (is_new) items_.emplace_back(key, Value());
    return items_[found->second].second;
  }
  bool contains(const Key& key) const { return find(key) != nullptr; }
  size_t size() const { return items_.size(); }
  bool empty() const { return items_.empty(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

  /// The same keys with the same values, in any order.
  friend bool operator==(const OrderedMap& left, const OrderedMap& right) {
    if (left.size() != right.size()) return false;
    for (const auto& [key, value] : left) {
      const Value* other = right.find(key);
      if (other == nullptr || !(*other == value)) return false;
    }
    return true;
  }

 private:
  std::vector<Item> items_;
  std::unordered_map<Key, size_t> positions_;  // models have thousands of names
};

}  // namespace accelerate
