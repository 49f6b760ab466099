#pragma once

#include <accelerate/distributed/value.h>

#include <string>
#include <string_view>

namespace accelerate::detail {

/// A value as bytes that another process of the same run turns back with `decode`. Tensors are sent through the CPU and
/// come back there; their strides do not travel.
std::string encode(const Value& value);

/// Throws DistributedError when the bytes are not what `encode` wrote: a peer of another version, or a broken link.
Value decode(std::string_view bytes);

}  // namespace accelerate::detail
