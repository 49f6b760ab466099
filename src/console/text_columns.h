#pragma once

#include <string>
#include <string_view>

namespace accelerate::detail {

/// How many columns of a terminal UTF-8 `text` takes: wide characters take two, combining marks none.
int columns_of(std::string_view text);

/// `text` cut to at most `columns`, with control characters and broken UTF-8 made harmless: what is left moves no cursor.
std::string fit_columns(std::string_view text, int columns);

}  // namespace accelerate::detail
