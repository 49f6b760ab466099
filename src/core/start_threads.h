#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace accelerate::detail {

/// Threads that run `work`, as many of `count` as the system gives, which may be none: for work that the calling thread can do
/// alone, only slower.
std::vector<std::jthread> start_threads(size_t count, const std::function<void()>& work);

}  // namespace accelerate::detail
