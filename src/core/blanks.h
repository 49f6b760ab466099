#pragma once

#include <string_view>

namespace accelerate::detail {

/// Without blanks and tabs, and ends of lines, at either end.
inline std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const auto begin = text.find_first_not_of(kBlanks);
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

}  // namespace accelerate::detail
