#include "core/escaped.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "core/utf8.h"

namespace accelerate::detail {
namespace {

struct ShapelessRange {
  char32_t first, last;
};

// Control characters (Cc), format characters (Cf), separators of lines and paragraphs (Zl, Zp), and what else Unicode 15 calls
// Default_Ignorable: nothing is drawn for these.
constexpr std::array<ShapelessRange, 28> kShapeless = {{
    {0x00, 0x1f},       {0x7f, 0x9f},       {0xad, 0xad},       {0x34f, 0x34f},     {0x600, 0x605},     {0x61c, 0x61c},
    {0x6dd, 0x6dd},     {0x70f, 0x70f},     {0x890, 0x891},     {0x8e2, 0x8e2},     {0x115f, 0x1160},   {0x17b4, 0x17b5},
    {0x180b, 0x180f},   {0x200b, 0x200f},   {0x2028, 0x202e},   {0x2060, 0x206f},   {0x3164, 0x3164},   {0xfe00, 0xfe0f},
    {0xfeff, 0xfeff},   {0xffa0, 0xffa0},   {0xfff0, 0xfffb},   {0xfffe, 0xffff},   {0x110bd, 0x110bd}, {0x110cd, 0x110cd},
    {0x13430, 0x1343f}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff},
}};

bool is_shapeless(char32_t point) {
  if (point >= 0x20 && point < 0x7f) return false;
  return std::ranges::any_of(kShapeless, [point](ShapelessRange range) { return range.first <= point && point <= range.last; });
}

std::string escape_of(char32_t point) {
  if (point == '\n') return "\\n";
  if (point == '\r') return "\\r";
  if (point == '\t') return "\\t";
  std::array<char, 16> text{};
  const char* pattern = point < 0x80 ? "\\x%02x" : point < 0x10000 ? "\\u%04x" : "\\U%08x";
  std::snprintf(text.data(), text.size(), pattern, static_cast<unsigned>(point));
  return text.data();
}

template <typename IsKept>
std::string escape_unless(std::string_view text, IsKept is_kept) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    const size_t bytes = std::max<size_t>(point.bytes, 1);
    if (point.bytes > 0 && is_kept(point.value)) {
      result += text.substr(0, bytes);
    } else if (point.bytes > 0) {
      result += escape_of(point.value);
    } else {
      std::array<char, 8> byte{};
      std::snprintf(byte.data(), byte.size(), "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(text[0])));
      result += byte.data();
    }
    text.remove_prefix(bytes);
  }
  return result;
}

}  // namespace

std::string escaped(std::string_view text) {
  return escape_unless(text, [](char32_t point) { return !is_shapeless(point); });
}

std::string escaped(std::string_view text, size_t most) {
  return escaped(utf8_prefix(text, most)) + (text.size() > most ? "..." : "");
}

std::string escaped_lines(std::string_view text) {
  return escape_unless(text, [](char32_t point) { return point == '\n' || !is_shapeless(point); });
}

std::string valid_utf8(std::string_view text) {
  return escape_unless(text, [](char32_t) { return true; });
}

}  // namespace accelerate::detail
