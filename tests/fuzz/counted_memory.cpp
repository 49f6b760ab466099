#include "fuzz/counted_memory.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {

struct Count {
  std::ptrdiff_t held = 0, peak = 0;  // what another thread allocated may be freed here
  size_t largest = 0;
};
thread_local Count counted;

void* counted_new(size_t size) noexcept {
  void* memory = std::malloc(std::max<size_t>(size, 1));
  if (memory == nullptr) return nullptr;
  counted.held += static_cast<std::ptrdiff_t>(::malloc_usable_size(memory));
  counted.peak = std::max(counted.peak, counted.held);
  counted.largest = std::max(counted.largest, size);
  return memory;
}

void* counted_new_or_throw(size_t size) {
  void* memory = counted_new(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void counted_delete(void* memory) noexcept {
  if (memory == nullptr) return;
  counted.held -= static_cast<std::ptrdiff_t>(::malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

// All of them but those for large alignments: a sanitizer's own would not find the blocks of these.
void* operator new(size_t size) { return counted_new_or_throw(size); }
void* operator new[](size_t size) { return counted_new_or_throw(size); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return counted_new(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return counted_new(size); }
void operator delete(void* memory) noexcept { counted_delete(memory); }
void operator delete[](void* memory) noexcept { counted_delete(memory); }
void operator delete(void* memory, size_t) noexcept { counted_delete(memory); }
void operator delete[](void* memory, size_t) noexcept { counted_delete(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { counted_delete(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { counted_delete(memory); }

namespace accelerate::testing {

CountedMemory::CountedMemory() : before_(counted.held) {
  counted.peak = counted.held;
  counted.largest = 0;
}
size_t CountedMemory::peak() const { return static_cast<size_t>(counted.peak - before_); }
size_t CountedMemory::largest() const { return counted.largest; }

}  // namespace accelerate::testing
