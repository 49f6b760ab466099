#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace accelerate::detail {

/// Starts up to `count` threads that run `work`. The system may allow fewer or none: the calling thread must be able to do the
/// work alone.
std::vector<std::jthread> start_threads(size_t count, const std::function<void()>& work);

}  // namespace accelerate::detail
