#pragma once

namespace models {

/// Of the general category L, as \p{L} in a regular expression.
bool is_letter(char32_t code);

/// Of the general category N, as \p{N}.
bool is_number(char32_t code);

/// Of the property White_Space, as \s.
bool is_space(char32_t code);

}  // namespace models
