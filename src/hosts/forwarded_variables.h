#pragma once

#include <string>

namespace accelerate::detail {

/// Whether a launch on other hosts passes this variable of the launcher's environment on to them: those that steer the library,
/// LibTorch and the transports, and the search paths. Not what belongs to this host or to another launch, nor secrets.
bool is_forwarded(const std::string& name);

}  // namespace accelerate::detail
