#pragma once

#include <stdexcept>
#include <string_view>

#include "fuzz/counted_memory.h"

namespace accelerate::testing {

/// What does not grow with the file: tables, messages, the reader's buffers. At the length of inputs that the fuzzers try, it
/// also covers the values of a file, which may take more than their bytes (docs/architecture.md says how much).
constexpr size_t kFreeMemory = 1 << 20;

/// Feeds `bytes`. Throws std::logic_error, which nobody catches, when that took more than twice their size and `free`, once or in
/// all.
inline void with_modest_memory(std::string_view bytes, void (*feed)(std::string_view), size_t free = kFreeMemory) {
  const CountedMemory memory;
  feed(bytes);
  if (memory.largest() > 2 * bytes.size() + free) throw std::logic_error("a single allocation was far larger than the file");
  if (memory.peak() > 2 * bytes.size() + free) throw std::logic_error("far more memory was held than the file has bytes");
}

}  // namespace accelerate::testing
