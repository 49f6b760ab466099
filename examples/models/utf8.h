#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace models {

/// A text as code points, and where in its bytes each begins. There is one offset more than there are codes: the end.
struct CodePoints {
  std::u32string codes;
  std::vector<size_t> offsets;
};

/// Takes UTF-8 apart. accelerate::UsageError names the first byte that is not UTF-8.
CodePoints code_points(std::string_view text);

/// The same text, with U+FFFD for whatever is not UTF-8: one for each longest beginning of a character that has no end, as
/// Rust and Python put it.
std::string with_replacements(std::string_view bytes);

/// A code point as UTF-8.
std::string utf8_of(char32_t code);

}  // namespace models
