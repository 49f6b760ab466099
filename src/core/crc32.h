#pragma once

#include <cstddef>
#include <cstdint>

namespace accelerate::detail {

/// The CRC-32 of zip files over `size` more bytes, `before` being that of the bytes before them (0 when there are none).
uint32_t crc32(uint32_t before, const void* bytes, size_t size);

/// The CRC-32 of two pieces joined, from those of each: pieces can be summed by several threads.
uint32_t combine_crc32(uint32_t first, uint32_t second, uint64_t second_size);

}  // namespace accelerate::detail
