#include "support/refused_renames.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

namespace {
std::atomic<int> renames_left = -1;  // below 0: none is refused
}

// Instead of the C library's.
extern "C" int rename(const char* from, const char* to) noexcept {
  if (renames_left >= 0 && renames_left-- == 0) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

RefusedRename::RefusedRename(int more) { renames_left = more; }

RefusedRename::~RefusedRename() { renames_left = -1; }
