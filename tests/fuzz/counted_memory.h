#pragma once

#include <cstddef>

/// Operators new and delete of a program that links counted_memory.cpp keep count of what their thread holds.
namespace accelerate::testing {

/// What the thread has allocated since this was made.
class CountedMemory {
 public:
  CountedMemory();
  /// The most bytes held at once, and the largest single allocation.
  size_t peak() const;
  size_t largest() const;

 private:
  std::ptrdiff_t before_;
};

}  // namespace accelerate::testing
