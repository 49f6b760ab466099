#pragma once

#include <source_location>
#include <string>

namespace accelerate::detail {

/// " at train.cpp:41": a line of the user's code in a message. "" when it is not known.
inline std::string at_line(const std::source_location& where) {
  return where.line() == 0 ? "" : std::string(" at ") + where.file_name() + ":" + std::to_string(where.line());
}

}  // namespace accelerate::detail
