#include "utf8.h"

#include <accelerate/core/error.h>

#include <optional>

namespace models {
namespace {

/// What stands at the beginning of some bytes: a character, or so many bytes that are none.
struct Head {
  std::optional<char32_t> code;
  size_t size;
};

/// The bytes that may follow the first one: UTF-8 has each character once, and no halves of pairs.
bool may_be_second(unsigned char first, unsigned char second) {
  if (first == 0xe0) return second >= 0xa0 && second <= 0xbf;
  if (first == 0xed) return second >= 0x80 && second <= 0x9f;
  if (first == 0xf0) return second >= 0x90 && second <= 0xbf;
  if (first == 0xf4) return second >= 0x80 && second <= 0x8f;
  return second >= 0x80 && second <= 0xbf;
}

Head head_of(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xc2 || first > 0xf4) return {{}, 1};
  const size_t size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  char32_t code = first & (0xffu >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    const bool fits = i < bytes.size() && (i == 1 ? may_be_second(first, at(1)) : (at(i) & 0xc0) == 0x80);
    if (!fits) return {{}, i};
    code = (code << 6) | (at(i) & 0x3f);
  }
  return {code, size};
}

}  // namespace

CodePoints code_points(std::string_view text) {
  CodePoints result;
  for (size_t at = 0; at < text.size();) {
    const Head head = head_of(text.substr(at));
    if (!head.code) throw accelerate::UsageError("The text is not UTF-8 at byte " + std::to_string(at) + ".");
    result.codes.push_back(*head.code);
    result.offsets.push_back(at);
    at += head.size;
  }
  result.offsets.push_back(text.size());
  return result;
}

std::string with_replacements(std::string_view bytes) {
  std::string result;
  for (size_t at = 0; at < bytes.size();) {
    const Head head = head_of(bytes.substr(at));
    result += head.code ? std::string(bytes.substr(at, head.size)) : "\uFFFD";
    at += head.size;
  }
  return result;
}

std::string utf8_of(char32_t code) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((code >> shift) & 0x3f)); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xc0 | (code >> 6)), tail(0)};
  if (code < 0x10000) return {static_cast<char>(0xe0 | (code >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | (code >> 18)), tail(12), tail(6), tail(0)};
}

}  // namespace models
