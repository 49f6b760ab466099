#include "console/text_columns.h"

#include <locale.h>
#include <wchar.h>

#include <cstdint>

#include "core/utf8.h"

namespace accelerate::detail {

namespace {

struct Glyph {
  size_t bytes = 1;
  int columns = 1;
  bool printable = true;
};

/// While it lives, this thread uses a UTF-8 locale for wcwidth, without changing the program's locale. If the system has no such
/// locale, the program's own is used.
class Utf8Columns {
 public:
  Utf8Columns() : before_(::uselocale(utf8_locale())) {}
  ~Utf8Columns() { ::uselocale(before_); }
  Utf8Columns(const Utf8Columns&) = delete;
  Utf8Columns& operator=(const Utf8Columns&) = delete;

  static int of(uint32_t code) {
    const int columns = code < 0x7f ? 1 : ::wcwidth(static_cast<wchar_t>(code));
    return columns < 0 ? 1 : columns;  // of a code point that it does not know
  }

 private:
  static locale_t utf8_locale() {
    static const locale_t locale = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    return locale;
  }
  const locale_t before_;
};

Glyph first_glyph(std::string_view text) {
  const auto [code, bytes] = first_code_point(text);
  if (bytes == 0) return {.printable = false};
  const bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
  return {.bytes = bytes, .columns = Utf8Columns::of(code), .printable = !control};
}

}  // namespace

int columns_of(std::string_view text) {
  const Utf8Columns counted_in_utf8;
  int columns = 0;
  while (!text.empty()) {
    const Glyph glyph = first_glyph(text);
    columns += glyph.columns;
    text.remove_prefix(glyph.bytes);
  }
  return columns;
}

std::string fit_columns(std::string_view text, int columns) {
  const Utf8Columns counted_in_utf8;
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
