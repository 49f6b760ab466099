#include "support/refused_threads.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <string_view>

namespace {

std::atomic<bool> refusing_threads = false;
std::atomic<int> threads_left = 0;

bool is_std_thread(void* (*start)(void*)) {
  Dl_info info{};
  return dladdr(reinterpret_cast<void*>(start), &info) != 0 && info.dli_fname &&
         std::string_view(info.dli_fname).find("libstdc++") != std::string_view::npos;
}

}  // namespace

// Replaces the C library's function.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                              void* argument) noexcept {
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (refusing_threads && is_std_thread(start) && threads_left-- <= 0) return EAGAIN;
  return real(thread, attributes, start, argument);
}

RefusedThreads::RefusedThreads(int more) {
  threads_left = more;
  refusing_threads = true;
}

RefusedThreads::~RefusedThreads() { refusing_threads = false; }

int RefusedThreads::refused() const { return threads_left < 0 ? -threads_left : 0; }
