#include "core/sha256.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace accelerate::detail {
namespace {

constexpr size_t kShaBlock = 64;

/// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> kShaRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

/// The same of the square roots of the first 8.
constexpr std::array<uint32_t, 8> kShaStart = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

using ShaState = std::array<uint32_t, 8>;

uint32_t big_endian(const char* bytes) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = word << 8 | static_cast<uint8_t>(bytes[i]);
  return word;
}

void add_block(ShaState& state, const char* block) {
  std::array<uint32_t, 64> words;
  for (size_t i = 0; i < 16; ++i) words[i] = big_endian(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t near = words[i - 2], far = words[i - 15];
    words[i] = words[i - 16] + words[i - 7] + (std::rotr(far, 7) ^ std::rotr(far, 18) ^ far >> 3) +
               (std::rotr(near, 17) ^ std::rotr(near, 19) ^ near >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t first =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + kShaRounds[i] + words[i];
    const uint32_t second = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const ShaState mixed = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += mixed[i];
}

std::string sha256_bytes(std::string_view message) {
  std::string padded(message);
  padded += '\x80';
  padded.resize((padded.size() + 8 + kShaBlock - 1) / kShaBlock * kShaBlock - 8);
  for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(uint64_t{message.size()} * 8 >> shift);
  ShaState state = kShaStart;
  for (size_t at = 0; at < padded.size(); at += kShaBlock) add_block(state, padded.data() + at);
  std::string bytes;
  for (const uint32_t word : state) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(word >> shift);
  }
  return bytes;
}

std::string hexadecimal(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += kDigits[static_cast<uint8_t>(byte) >> 4];
    text += kDigits[static_cast<uint8_t>(byte) & 15];
  }
  return text;
}

std::string xor_all(std::string bytes, char mask) {
  for (char& byte : bytes) byte = static_cast<char>(byte ^ mask);
  return bytes;
}

}  // namespace

std::string sha256(std::string_view message) { return hexadecimal(sha256_bytes(message)); }

std::string hmac_sha256(std::string_view key, std::string_view message) {
  std::string block = key.size() > kShaBlock ? sha256_bytes(key) : std::string(key);
  block.resize(kShaBlock);
  const std::string inner = sha256_bytes(xor_all(block, 0x36).append(message));
  return hexadecimal(sha256_bytes(xor_all(block, 0x5c).append(inner)));
}

bool equal_codes(std::string_view left, std::string_view right) {
  if (left.size() != right.size()) return false;
  int difference = 0;
  for (size_t i = 0; i < left.size(); ++i) difference |= left[i] ^ right[i];
  return difference == 0;
}

}  // namespace accelerate::detail
