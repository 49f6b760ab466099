#pragma once

#include <cstdint>
#include <mutex>

namespace accelerate::detail {

/// The pages of a file that the system has in memory, mapped: to copy them takes a third to two thirds of the time of having them
/// read.
///
/// A mapped page that cannot be had, because the file was cut or its disk failed, raises SIGBUS. While pages are copied, a
/// handler of ours turns that into an answer. It is installed by the first copy, and only where SIGBUS has no handler: a program,
/// crash reporter or sanitizer that has one keeps it, and nothing is copied there.
class CachedPages {
 public:
  /// Of a file with `size` bytes that stays open. It is mapped by the first copy.
  CachedPages(int descriptor, uint64_t size) : descriptor_(descriptor), size_(size) {}
  ~CachedPages();
  CachedPages(const CachedPages&) = delete;
  CachedPages& operator=(const CachedPages&) = delete;

  /// Copies bytes of the file, from the first on, as far as their pages are in memory, and returns how many. The others are to be
  /// read, which also tells why a page cannot be had. None may lie behind the file's `size`. Threads may copy at once.
  uint64_t copy(void* to, uint64_t size, uint64_t offset);

 private:
  void map();
  bool in_memory(uint64_t begin, uint64_t end) const;
  bool copy_pages(char* to, uint64_t size, uint64_t offset) const;

  int descriptor_;
  uint64_t size_, page_ = 0;
  std::once_flag mapped_;
  char* start_ = nullptr;  // none where it cannot be mapped, or the system does not tell which pages it has
};

}  // namespace accelerate::detail
