#include "core/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "core/start_threads.h"

namespace accelerate::detail {

void in_parallel(size_t count, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = count;
      }
    }
  };
  const size_t wanted = std::min<size_t>({count, std::max(1U, std::thread::hardware_concurrency()), 8});
  {
    const auto threads = start_threads(wanted - std::min<size_t>(wanted, 1), run);
    run();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace accelerate::detail
