#pragma once

#include <string>

namespace accelerate::detail {

/// Bytes that programs can still use without swapping, as the kernel estimates (MemAvailable). Error when it does not say.
double available_host_memory(const std::string& meminfo = "/proc/meminfo");

}  // namespace accelerate::detail
