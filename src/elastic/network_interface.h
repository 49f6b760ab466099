#pragma once

#include <string>

namespace accelerate::detail {

/// The interface by which this host reaches `address`, or that has it: "eth0". Empty when the address means nothing here.
std::string interface_to(const std::string& address);

}  // namespace accelerate::detail
