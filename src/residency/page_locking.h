#pragma once

#include <cstdint>

namespace accelerate::detail {

/// Keeps the system from moving or swapping pages, so that an accelerator can read them by DMA. False where that cannot be
/// done; then a device's driver copies the bytes first, and all else is the same.
bool lock_pages(void* memory, uint64_t size);
/// Ends it, before the memory is freed.
void unlock_pages(void* memory);

}  // namespace accelerate::detail
