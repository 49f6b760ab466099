#pragma once

#include <string>

namespace accelerate::detail {

/// The interface that has this end of a connected socket: "eth0". Empty when none has.
std::string interface_of(int socket);

}  // namespace accelerate::detail
