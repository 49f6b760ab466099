#pragma once

#include <cstddef>
#include <string_view>

namespace accelerate::detail {

/// A code point, and how many bytes of UTF-8 it takes: 0 where bytes are not UTF-8.
struct CodePoint {
  char32_t value = 0;
  size_t bytes = 0;
};

/// What `text`, which is not empty, begins with. Overlong forms, surrogates and what lies beyond Unicode are not UTF-8.
CodePoint first_code_point(std::string_view text);

/// As much of `text` as `most` bytes hold, without half a code point at its end.
std::string_view utf8_prefix(std::string_view text, size_t most);

}  // namespace accelerate::detail
