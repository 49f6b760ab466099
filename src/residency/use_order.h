#pragma once

#include <cstdint>
#include <thread>
#include <unordered_map>
#include <vector>

namespace accelerate::detail {

/// Learns in which order units of weights are used, and tells which are expected next. What followed a pair of units the last
/// time is expected to follow it again: pairs tell a backward pass from a forward pass without being told where either begins.
/// What was never seen follows in the order in which units were added.
class UseOrder {
 public:
  void add_unit();
  /// The calling thread uses `unit`. Returns whether it used another one before.
  bool used(int unit);
  /// A pass has ended, in all threads: when the same units are used again, nothing is expected after the last ones.
  void ended();
  /// The units that the calling thread is expected to use after its last one, each once, nearest first.
  std::vector<int> expected(size_t most) const;

 private:
  /// Where a thread is.
  struct Cursor {
    std::thread::id thread;
    int before = kNothing, last = kNothing;
  };
  static constexpr size_t kMostThreads = 32;
  static constexpr int kNothing = -1;

  static uint64_t pair_of(int before, int last) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(before)) << 32) | static_cast<uint32_t>(last);
  }
  int next(int before, int last) const;
  Cursor& cursor();

  std::vector<int> after_one_;                    // by the unit used last
  std::unordered_map<uint64_t, int> after_pair_;  // by the two used last
  std::vector<Cursor> cursors_;                   // the most recent one last
};

}  // namespace accelerate::detail
