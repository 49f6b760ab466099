#pragma once

#include <cstddef>
#include <string>
#include <string_view>

/// Text from a file, a file name or an environment variable may hold terminal control sequences or invisible characters. All
/// such text is escaped with these functions before it is printed.
namespace accelerate::detail {

/// `text` on one line, as a message or a cell of a table shows it. Control characters of both sets, line and paragraph
/// separators, controls of writing direction and all other characters without a shape become `\n`, `\x1b` or `\u202e`; bytes that
/// are not UTF-8 become `\x9b`. What is escaped already stays as it is.
std::string escaped(std::string_view text);

/// The same of the first `most` bytes, with "..." where there are more.
std::string escaped(std::string_view text, size_t most);

/// How many bytes of a file's text are quoted in a message: the file is not trusted.
inline constexpr size_t kLongestQuote = 1000;

/// The same of a message that may have several lines.
std::string escaped_lines(std::string_view text);

/// `text` for JSON, whose writer escapes characters itself: bytes that are not UTF-8 become `\x9b`, all else stays.
std::string valid_utf8(std::string_view text);

}  // namespace accelerate::detail
