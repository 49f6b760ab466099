#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

namespace accelerate::detail {

/// Bytes that one process writes and others read without waiting for it: a reader sees a whole value or knows that it did not.
template <class Plain>
class SharedSlot {
  static_assert(std::is_trivially_copyable_v<Plain> && sizeof(Plain) % sizeof(uint64_t) == 0);

 public:
  void store(const Plain& value) {
    uint64_t words[kWords];
    std::memcpy(words, &value, sizeof(value));
    const auto version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    // Each word is released after the odd version: a reader that sees a new word sees that version too, and reads again.
    for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  /// Nothing when the writer was in the middle of it, and stays there: it died.
  std::optional<Plain> load() const {
    for (int attempt = 0; attempt < 1000; ++attempt) {
      const auto version = version_.load(std::memory_order_acquire);
      uint64_t words[kWords];
      for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
      if (version % 2 == 1 || version_.load(std::memory_order_relaxed) != version) continue;
      Plain value;
      std::memcpy(&value, words, sizeof(value));
      return value;
    }
    return std::nullopt;
  }

 private:
  static constexpr size_t kWords = sizeof(Plain) / sizeof(uint64_t);
  std::atomic<uint64_t> version_ = 0;
  std::array<std::atomic<uint64_t>, kWords> words_ = {};
};

}  // namespace accelerate::detail
