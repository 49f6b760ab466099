#include "core/start_threads.h"

#include <new>
#include <system_error>

namespace accelerate::detail {

std::vector<std::jthread> start_threads(size_t count, const std::function<void()>& work) {
  std::vector<std::jthread> threads;
  threads.reserve(count);  // from here on only the start of a thread can fail
  try {
    while (threads.size() < count) threads.emplace_back(work);
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
  return threads;
}

}  // namespace accelerate::detail
