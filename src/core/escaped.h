#pragma once

#include <cstddef>
#include <string>
#include <string_view>

/// Text that comes from a file, from the name of one or from a variable may hold what a terminal obeys or what hides the rest
/// from a reader. Nothing of the kind is printed: these are what it goes through.
namespace accelerate::detail {

/// `text` on one line, as a message or a cell of a table shows it. Control characters of both sets, line and paragraph
/// separators, controls of writing direction and all other characters without a shape become `\n`, `\x1b` or `\u202e`; bytes that
/// are not UTF-8 become `\x9b`. What is escaped already stays as it is.
std::string escaped(std::string_view text);

/// The same of the first `most` bytes, with "..." where there are more.
std::string escaped(std::string_view text, size_t most);

/// How much of what a file says is quoted: whoever wrote it chose how long it is.
inline constexpr size_t kLongestQuote = 1000;

/// The same of a message that may have several lines.
std::string escaped_lines(std::string_view text);

/// `text` for JSON, whose writer escapes characters by itself: bytes that are not UTF-8 become `\x9b`, all else stays.
std::string valid_utf8(std::string_view text);

}  // namespace accelerate::detail
