#include "core/byte_source.h"

#include <accelerate/core/error.h>

#include <cstring>

namespace accelerate {

std::string ByteSource::text(uint64_t offset, uint64_t size) const {
  if (offset > size_ || size > size_ - offset) {
    throw CheckpointError(name_ + " ends at byte " + std::to_string(size_) + ", before the " + std::to_string(size) +
                          " bytes that should stand at " + std::to_string(offset) + ".");
  }
  std::string bytes(size, '\0');
  read(bytes.data(), size, offset);
  return bytes;
}

void MemorySource::read(void* bytes, uint64_t size, uint64_t offset) const {
  if (offset > size_ || size > size_ - offset) throw CheckpointError(name_ + " is too short.");
  if (size > 0) std::memcpy(bytes, bytes_.data() + offset, size);
}

}  // namespace accelerate
