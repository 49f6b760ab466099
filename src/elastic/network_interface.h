#pragma once

#include <string>
#include <vector>

namespace accelerate::detail {

/// The interface that has this end of a connected socket: "eth0". Empty when none has.
std::string interface_of(int socket);

/// The interface by which this host reaches `address`. Where that is this host, as its own name may mean 127.0.1.1, the interface
/// that has the address, or the only one but the loopback interface. Empty when it is not clear.
std::string interface_to(const std::string& address);

/// Whether only this host reaches itself by `address`: "localhost", "127.0.0.1", "::1".
bool is_loopback(const std::string& address);

/// How other hosts reach the host of this name, as far as it is known here: its first IPv4 address that is none of the loopback
/// interface. For this host, where its own name often means 127.0.1.1, the address of its only other interface. Else `name`
/// itself.
std::string address_for_others(const std::string& name);

/// The IPv4 addresses of this host, but those of its loopback interface.
std::vector<std::string> own_addresses();

}  // namespace accelerate::detail
