#include "core/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace accelerate {

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
  std::vector<std::thread> threads;
  const size_t wanted = std::min<size_t>({count, std::max(1U, std::thread::hardware_concurrency()), 8});
  try {
    for (size_t i = 1; i < wanted; ++i) threads.emplace_back(run);
  } catch (const std::system_error&) {  // no more threads to be had: those that are there do it all
  }
  run();
  for (auto& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace accelerate
