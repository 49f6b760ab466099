#include "core/byte_source.h"

#include <accelerate/core/error.h>

#include <cstring>

#include "core/escaped.h"

namespace accelerate::detail {

ByteSource::ByteSource(std::string_view name) : name_(escaped(name)) {}

void ByteSource::require(uint64_t offset, uint64_t size) const {
  if (offset <= size_ && size <= size_ - offset) return;
  throw CheckpointError(name_ + " is truncated: it ends at byte " + std::to_string(size_) + ", but " + std::to_string(size) +
                        " bytes are expected at offset " + std::to_string(offset) + ".");
}

std::string ByteSource::text(uint64_t offset, uint64_t size) const {
  require(offset, size);
  std::string bytes(size, '\0');
  read(bytes.data(), size, offset);
  return bytes;
}

void MemorySource::read(void* bytes, uint64_t size, uint64_t offset) const {
  require(offset, size);
  if (size > 0) std::memcpy(bytes, bytes_.data() + offset, size);
}

SectionSource::SectionSource(const ByteSource& whole, uint64_t offset, uint64_t size)
    : ByteSource(whole.name()), whole_(whole), offset_(offset) {
  whole.require(offset, size);
  size_ = size;
}

void SectionSource::read(void* bytes, uint64_t size, uint64_t offset) const {
  require(offset, size);
  whole_.read(bytes, size, offset_ + offset);
}

}  // namespace accelerate::detail
