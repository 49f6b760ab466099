#pragma once

#include <string>

namespace accelerate::detail::cli {

/// The name to use when Python's `accelerate` is on PATH too. "accelerate-launch" is a single command; this one has them all.
inline constexpr const char* kNameBesidePython = "accelerate-cpp";

/// The name by which the command line was called: kNameBesidePython, else "accelerate".
std::string program_name();

/// `text` with commands under the name this program was called by: "`accelerate config`" may be Python's.
std::string as_called(std::string text);

}  // namespace accelerate::detail::cli
