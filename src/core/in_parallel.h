#pragma once

#include <cstddef>
#include <functional>

namespace accelerate::detail {

/// Calls `work` for each number below `count`, on one thread per core but at most eight: memory and disk bandwidth allow no more.
/// When a call throws, no further ones start, and the first exception is rethrown.
void in_parallel(size_t count, const std::function<void(size_t)>& work);

}  // namespace accelerate::detail
