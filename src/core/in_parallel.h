#pragma once

#include <cstddef>
#include <functional>

namespace accelerate::detail {

/// Calls `work` for each number below `count`, on as many threads as there are cores, but eight at most: memory and files have no
/// more to give. When one throws, no more are begun, and the first exception comes out.
void in_parallel(size_t count, const std::function<void(size_t)>& work);

}  // namespace accelerate::detail
