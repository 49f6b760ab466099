#include "elastic/rank_listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace accelerate::detail {
namespace {

constexpr const char* kLoopbackAddress = "127.0.0.1";

struct SocketAddress {
  sockaddr_storage bytes = {};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  bool operator==(const SocketAddress& other) const { return size == other.size && std::memcmp(&bytes, &other.bytes, size) == 0; }
  void set_port(int port) {
    auto& place = bytes.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&bytes)->sin_port
                                             : reinterpret_cast<sockaddr_in6*>(&bytes)->sin6_port;
    place = htons(static_cast<uint16_t>(port));
  }
  bool is_loopback() const {
    if (bytes.ss_family == AF_INET)
      return ntohl(reinterpret_cast<const sockaddr_in*>(&bytes)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return bytes.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&bytes)->sin6_addr);
  }
};

/// A socket that is bound to `address`, or -1: it is not this host's, or the port is in use there.
int bind_to(const SocketAddress& address) {
  const int socket = ::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // connections of an earlier run may linger
  if (socket >= 0 && ::bind(socket, address.get(), address.size) == 0) return socket;
  if (socket >= 0) ::close(socket);
  return -1;
}

/// What `name` means, without a port.
std::vector<SocketAddress> resolve(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  ::getaddrinfo(name.c_str(), nullptr, &hints, &found);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    SocketAddress address{.size = entry->ai_addrlen};
    std::memcpy(&address.bytes, entry->ai_addr, entry->ai_addrlen);
    if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) addresses.push_back(address);
  }
  if (found != nullptr) ::freeaddrinfo(found);
  return addresses;
}

bool is_numeric(const std::string& name) {
  in6_addr bytes;
  return ::inet_pton(AF_INET, name.c_str(), &bytes) == 1 || ::inet_pton(AF_INET6, name.c_str(), &bytes) == 1;
}

/// True when this host has the address: any port tells.
bool is_own(const SocketAddress& address) {
  const int socket = bind_to(address);
  if (socket >= 0) ::close(socket);
  return socket >= 0;
}

}  // namespace

bool is_own_address(const std::string& address) {
  const auto meant = resolve(address);
  return std::any_of(meant.begin(), meant.end(), is_own);
}

StoreListener listen_for_ranks(const std::string& address, int port) {
  // Both families of the loopback interface are one to those that look for it.
  const std::string name = address == "localhost" ? kLoopbackAddress : address;
  auto own = resolve(name);
  std::erase_if(own, [](const SocketAddress& candidate) { return !is_own(candidate); });
  std::string reason;
  if (own.empty()) {
    reason = "is not an address of this host";
  } else if (own.size() > 1) {
    reason = "resolves to several addresses of this host";
  } else if (!is_numeric(name) && own.front().is_loopback()) {
    reason = "resolves to a loopback address on this host, and to another address on other hosts";
  } else {
    own.front().set_port(port);
    const int socket = bind_to(own.front());
    if (socket >= 0 && ::listen(socket, SOMAXCONN) == 0) return {.socket = socket, .reached_at = name};
    if (socket >= 0) ::close(socket);
    return {.reached_at = name};  // in use, maybe by an earlier group of this process: c10d knows
  }
  return {.reached_at = kLoopbackAddress,
          .warning = "MASTER_ADDR=" + address + " " + reason + ": rank 0 listens at all addresses of this host, port " +
                     std::to_string(port) +
                     ". Set MASTER_ADDR to the address at which other hosts reach this one, or protect the port "
                     "(ACCELERATE_RENDEZVOUS_SECRET_FILE, a firewall)."};
}

}  // namespace accelerate::detail
