#pragma once

#include <string>

namespace accelerate::detail::cli {

/// The name for a PATH that has Python's `accelerate` too. "accelerate-launch" and the like are one command; this is all of them.
inline constexpr const char* kNameBesidePython = "accelerate-cpp";

/// The name by which the command line was called: kNameBesidePython, else "accelerate".
std::string program_name();

/// `text` with commands under the name that was called: "`accelerate config`" may be Python's.
std::string as_called(std::string text);

}  // namespace accelerate::detail::cli
