#include "core/utf8.h"

namespace accelerate::detail {
namespace {

bool continues_code_point(char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80; }

/// How many bytes a code point has that begins with `lead`; 0: none does.
size_t utf8_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  return lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
}

}  // namespace

CodePoint first_code_point(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = utf8_length(lead);
  if (length == 0 || length > text.size()) return {};
  if (length == 1) return {lead, 1};
  char32_t point = lead & (0xffU >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if (!continues_code_point(text[i])) return {};
    point = (point << 6) | (static_cast<unsigned char>(text[i]) & 0x3fU);
  }
  const bool overlong = (length == 3 && point < 0x800) || (length == 4 && point < 0x10000);
  const bool surrogate = point >= 0xd800 && point <= 0xdfff;
  if (overlong || surrogate || point > 0x10ffff) return {};
  return {point, length};
}

std::string_view utf8_prefix(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && most - end < 3 && continues_code_point(text[end])) --end;
  return text.substr(0, end);
}

}  // namespace accelerate::detail
