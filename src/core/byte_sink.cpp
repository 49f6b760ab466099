#include "core/byte_sink.h"

#include <algorithm>

#include "core/crc32.h"

namespace accelerate::detail {

uint32_t ByteSink::write_summed(const void* bytes, uint64_t size) {
  constexpr uint64_t kPiece = uint64_t{256} << 10;  // half of a small core's own cache
  const auto* rest = static_cast<const char*>(bytes);
  uint32_t sum = 0;
  for (uint64_t piece = 0; size > 0; rest += piece, size -= piece) {
    piece = std::min(size, kPiece);
    sum = crc32(sum, rest, piece);
    write(rest, piece);
  }
  return sum;
}

}  // namespace accelerate::detail
