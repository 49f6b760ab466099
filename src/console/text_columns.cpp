#include "console/text_columns.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/utf8.h"

namespace accelerate::detail {

namespace {

struct Glyph {
  size_t bytes = 1;
  int columns = 1;
  bool printable = true;
};

struct CodeRange {
  uint32_t first, last;
};

// wcwidth would need the program's locale to be set, which is not this library's to do. These blocks are what matters of it.
constexpr std::array<CodeRange, 6> kNoColumns = {
    {{0x300, 0x36f}, {0x200b, 0x200f}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}, {0xe0100, 0xe01ef}}};
constexpr std::array<CodeRange, 9> kTwoColumns = {{{0x1100, 0x115f},
                                                   {0x2e80, 0xa4cf},
                                                   {0xac00, 0xd7a3},
                                                   {0xf900, 0xfaff},
                                                   {0xfe30, 0xfe6f},
                                                   {0xff00, 0xff60},
                                                   {0xffe0, 0xffe6},
                                                   {0x1f300, 0x1faff},
                                                   {0x20000, 0x3fffd}}};

template <size_t N>
bool is_in(const std::array<CodeRange, N>& ranges, uint32_t code) {
  return std::ranges::any_of(ranges, [code](CodeRange range) { return range.first <= code && code <= range.last; });
}

Glyph first_glyph(std::string_view text) {
  const auto [code, bytes] = first_code_point(text);
  if (bytes == 0) return {.printable = false};
  const bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
  return {.bytes = bytes, .columns = is_in(kNoColumns, code) ? 0 : is_in(kTwoColumns, code) ? 2 : 1, .printable = !control};
}

}  // namespace

int columns_of(std::string_view text) {
  int columns = 0;
  while (!text.empty()) {
    const Glyph glyph = first_glyph(text);
    columns += glyph.columns;
    text.remove_prefix(glyph.bytes);
  }
  return columns;
}

std::string fit_columns(std::string_view text, int columns) {
  std::string fitted;
  while (!text.empty()) {
    const Glyph glyph = first_glyph(text);
    columns -= glyph.columns;
    if (columns < 0) break;
    if (glyph.printable) {
      fitted += text.substr(0, glyph.bytes);
    } else {
      fitted += text[0] & 0x80 ? '?' : ' ';
    }
    text.remove_prefix(glyph.bytes);
  }
  return fitted;
}

}  // namespace accelerate::detail
