#include "residency/cached_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <string>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace accelerate::detail {
namespace {

constexpr uint64_t kPagesAtOnce = 1024;

/// A copy from a mapping, and where to resume when a page of it cannot be read.
struct Copying {
  const char *begin, *end;  // of the mapping: what a fault tells may be the beginning of its page
  sigjmp_buf failed;
};
/// Of this thread. In memory that every thread has from its beginning, since a handler may not allocate.
[[gnu::tls_model("initial-exec")]] thread_local Copying* volatile copying = nullptr;

void on_bus_error(int signal, siginfo_t* info, void*) {
  const auto* const address = static_cast<const char*>(info->si_addr);
  Copying* const ours = copying;
  if (ours && info->si_code > 0 && address >= ours->begin && address < ours->end) siglongjmp(ours->failed, 1);
  // Somebody else's: it ends the process as if we had never been, now or when the instruction that raised it is tried again.
  std::signal(signal, SIG_DFL);
  if (info->si_code <= 0 || info->si_code == BUS_MCEERR_AO) std::raise(signal);  // no instruction raised it
}

bool is_ours(const struct sigaction& action) { return (action.sa_flags & SA_SIGINFO) && action.sa_sigaction == on_bus_error; }
bool is_nobodys(const struct sigaction& action) { return !(action.sa_flags & SA_SIGINFO) && action.sa_handler == SIG_DFL; }

/// Whether a SIGBUS of this thread would come to us, which is asked each time: a handler may be replaced, a signal blocked.
bool bus_errors_are_ours() {
  sigset_t blocked;
  struct sigaction action {};
  if (pthread_sigmask(SIG_BLOCK, nullptr, &blocked) != 0 || sigismember(&blocked, SIGBUS)) return false;
  if (sigaction(SIGBUS, nullptr, &action) != 0) return false;
  if (is_ours(action)) return true;
  if (!is_nobodys(action)) return false;
  struct sigaction handler {};
  handler.sa_sigaction = on_bus_error;
  handler.sa_flags = SA_SIGINFO | SA_ONSTACK;
  if (sigaction(SIGBUS, &handler, &action) != 0) return false;
  if (is_nobodys(action) || is_ours(action)) return true;
  sigaction(SIGBUS, &action, nullptr);  // another thread's, of this very moment
  return false;
}

/// Past the processor's caches: a layer is larger than they are, and they need not be filled with what is about to be
/// overwritten.
void copy_past_caches(char* to, const char* from, uint64_t size) {
#ifdef __SSE2__
  constexpr uint64_t kWord = sizeof(__m128i);
  const uint64_t head = std::min(size, -reinterpret_cast<uintptr_t>(to) % kWord);
  std::memcpy(to, from, head);
  to += head, from += head, size -= head;
  for (; size >= 4 * kWord; to += 4 * kWord, from += 4 * kWord, size -= 4 * kWord) {
    const auto* const source = reinterpret_cast<const __m128i*>(from);
    auto* const target = reinterpret_cast<__m128i*>(to);
    const __m128i words[] = {_mm_loadu_si128(source), _mm_loadu_si128(source + 1), _mm_loadu_si128(source + 2),
                             _mm_loadu_si128(source + 3)};
    for (int i = 0; i < 4; ++i) _mm_stream_si128(target + i, words[i]);
  }
  _mm_sfence();  // other threads see it with whatever tells them that it is there
#endif
  std::memcpy(to, from, size);
}

/// Linux tells the owner of a file, and those who may write to it, which pages are in memory; to others it says that all are.
bool pages_are_told(int descriptor) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0) return false;
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  return status.st_uid == geteuid() || faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
}

}  // namespace

CachedPages::~CachedPages() {
  if (start_) munmap(start_, size_);
}

void CachedPages::map() {
  page_ = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  rlimit addresses{};
  const bool limited = getrlimit(RLIMIT_AS, &addresses) != 0 || addresses.rlim_cur != RLIM_INFINITY;
  if (limited || size_ == 0 || !pages_are_told(descriptor_)) return;  // addresses that are few are for memory
  void* const start = mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor_, 0);
  if (start != MAP_FAILED) start_ = static_cast<char*>(start);
}

bool CachedPages::in_memory(uint64_t begin, uint64_t end) const {
  std::array<unsigned char, kPagesAtOnce> pages;
  const uint64_t count = (end - begin + page_ - 1) / page_;
  if (mincore(start_ + begin, end - begin, pages.data()) != 0) return false;
  return std::all_of(pages.begin(), pages.begin() + count, [](unsigned char page) { return page & 1; });
}

/// False when a page could not be had.
bool CachedPages::copy_pages(char* to, uint64_t size, uint64_t offset) const {
  Copying here{start_, start_ + size_, {}};
  // With the mask: a handler runs with signals blocked, and a jump alone leaves them so.
  if (sigsetjmp(here.failed, /*savemask=*/1) != 0) {
    copying = nullptr;
    return false;
  }
  copying = &here;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  copy_past_caches(to, start_ + offset, size);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  copying = nullptr;
  return true;
}

uint64_t CachedPages::copy(void* to, uint64_t size, uint64_t offset) {
  std::call_once(mapped_, [this] { map(); });
  if (!start_ || !bus_errors_are_ours()) return 0;
  uint64_t copied = 0;
  while (copied < size) {
    const uint64_t at = offset + copied, first_page = at / page_ * page_;
    const uint64_t end = std::min(offset + size, first_page + kPagesAtOnce * page_);
    if (!in_memory(first_page, end) || !copy_pages(static_cast<char*>(to) + copied, end - at, at)) break;
    copied = end - offset;
  }
  return copied;
}

}  // namespace accelerate::detail
