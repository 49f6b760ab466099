#pragma once

namespace accelerate {

/// The version of this library as "major.minor.patch".
const char* version();

}  // namespace accelerate
