#include "core/crc32.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace accelerate::detail {
namespace {

constexpr uint32_t kPolynomial = 0xEDB88320;  // bits reflected

using CrcTables = std::array<std::array<uint32_t, 256>, 8>;

constexpr CrcTables make_crc_tables() {
  CrcTables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = value;
  }
  for (size_t table = 1; table < 8; ++table) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t previous = tables[table - 1][byte];
      tables[table][byte] = (previous >> 8) ^ tables[0][previous & 0xFF];
    }
  }
  return tables;
}

constexpr CrcTables kTables = make_crc_tables();

/// Slicing-by-8: eight bytes per iteration, each through its own table. `state` is the inverted checksum.
uint32_t crc_by_tables(uint32_t state, const unsigned char* bytes, size_t size) {
  for (; size >= 8; size -= 8, bytes += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes, 8);
    word ^= state;
    state = 0;
    for (size_t i = 0; i < 8; ++i) state ^= kTables[7 - i][(word >> (8 * i)) & 0xFF];
  }
  for (; size > 0; --size, ++bytes) state = (state >> 8) ^ kTables[0][(state ^ *bytes) & 0xFF];
  return state;
}

#if defined(__x86_64__)

/// One 128-bit remainder moved on by the distance that `factors` stand for, joined with what lies there.
__attribute__((target("pclmul,sse4.1"))) inline __m128i fold(__m128i value, __m128i factors, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(value, factors, 0x00);
  const __m128i high = _mm_clmulepi64_si128(value, factors, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

inline __m128i load(const unsigned char* bytes) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)); }

/// Carry-less multiplication: four remainders of 128 bits run side by side, each folded over 64 bytes a turn, and then become
/// one. That one is congruent to all bytes so far, so the tables finish it as if it were the data. Takes multiples of 16,
/// from 64.
__attribute__((target("pclmul,sse4.1"))) uint32_t crc_by_folding(uint32_t state, const unsigned char* bytes, size_t size) {
  // Powers of x modulo the polynomial, reflected: x^(512+32), x^(512-32); x^(128+32), x^(128-32).
  const __m128i over_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
  const __m128i over_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
  // Named one by one: an array would live in memory unless the compiler unrolls the loops, and -O1 does not.
  __m128i a = _mm_xor_si128(load(bytes), _mm_cvtsi32_si128(static_cast<int>(state)));
  __m128i b = load(bytes + 16);
  __m128i c = load(bytes + 32);
  __m128i d = load(bytes + 48);
  for (bytes += 64, size -= 64; size >= 64; bytes += 64, size -= 64) {
    a = fold(a, over_64, load(bytes));
    b = fold(b, over_64, load(bytes + 16));
    c = fold(c, over_64, load(bytes + 32));
    d = fold(d, over_64, load(bytes + 48));
  }
  __m128i sum = fold(fold(fold(a, over_16, b), over_16, c), over_16, d);
  for (; size >= 16; bytes += 16, size -= 16) sum = fold(sum, over_16, load(bytes));
  unsigned char rest[16];
  std::memcpy(rest, &sum, 16);
  return crc_by_tables(0, rest, 16);
}

#endif

uint32_t times_x(uint32_t value) { return (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0); }

/// The product of two polynomials modulo the CRC's, bits reflected.
uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1U << 31; bit != 0; bit >>= 1, b = times_x(b)) {
    if ((a & bit) != 0) product ^= b;
  }
  return product;
}

}  // namespace

uint32_t crc32(uint32_t before, const void* bytes, size_t size) {
  const auto* data = static_cast<const unsigned char*>(bytes);
  uint32_t state = ~before;
#if defined(__x86_64__)
  static const bool can_fold = __builtin_cpu_supports("pclmul") != 0 && __builtin_cpu_supports("sse4.1") != 0;
  if (can_fold && size >= 64) {
    const size_t folded = size / 16 * 16;
    state = crc_by_folding(state, data, folded);
    data += folded;
    size -= folded;
  }
#endif
  return ~crc_by_tables(state, data, size);
}

uint32_t combine_crc32(uint32_t first, uint32_t second, uint64_t second_size) {
  uint32_t power = 1U << 30;                                   // x
  uint32_t shift = 1U << 31;                                   // 1
  for (int i = 0; i < 3; ++i) power = multiply(power, power);  // x^8: a byte
  for (; second_size > 0; second_size >>= 1, power = multiply(power, power)) {
    if ((second_size & 1) != 0) shift = multiply(shift, power);
  }
  return multiply(first, shift) ^ second;
}

}  // namespace accelerate::detail
