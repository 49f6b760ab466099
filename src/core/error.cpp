#include <accelerate/core/error.h>

#include "core/escaped.h"

namespace accelerate {

using namespace detail;

Error::Error(const std::string& message) : std::runtime_error(escaped_lines(message)) {}

}  // namespace accelerate
