#include "elastic/network_interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>

namespace accelerate::detail {
namespace {

bool same_host(const sockaddr* left, const sockaddr* right) {
  if (left == nullptr || left->sa_family != right->sa_family) return false;
  if (left->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(left)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(right)->sin_addr.s_addr;
  }
  return left->sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6*>(left)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(right)->sin6_addr, sizeof(in6_addr)) == 0;
}

std::string interface_with(const sockaddr* address) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return "";
  std::string name;
  for (const ifaddrs* each = all; each != nullptr && name.empty(); each = each->ifa_next) {
    if (same_host(each->ifa_addr, address)) name = each->ifa_name;
  }
  ::freeifaddrs(all);
  return name;
}

/// What a socket for both families says of an IPv4 peer, as IPv4 has it.
sockaddr_storage without_mapping(const sockaddr_storage& address) {
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  if (address.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return address;
  sockaddr_storage plain = {};
  auto& four = reinterpret_cast<sockaddr_in&>(plain);
  four.sin_family = AF_INET;
  std::memcpy(&four.sin_addr, six.sin6_addr.s6_addr + 12, sizeof four.sin_addr);
  return plain;
}

/// Nothing is sent: to connect a datagram socket only asks for the route.
std::string interface_of_route(const addrinfo& to) {
  const int socket = ::socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool known = ::connect(socket, to.ai_addr, to.ai_addrlen) == 0;
  const std::string name = known ? interface_of(socket) : "";
  if (socket >= 0) ::close(socket);
  return name;
}

std::string only_other_interface() {
  const auto own = own_addresses();
  if (own.size() != 1) return "";
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, own.front().c_str(), &address.sin_addr);
  return interface_with(reinterpret_cast<const sockaddr*>(&address));
}

}  // namespace

std::string interface_to(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), "9", &hints, &found) != 0) return "";
  std::string name;
  for (const addrinfo* each = found; each != nullptr && name.empty(); each = each->ai_next) name = interface_of_route(*each);
  ::freeaddrinfo(found);
  // The way to an address of this host is its loopback interface, unless that is what the address says.
  return name == "lo" && !is_loopback(address) ? only_other_interface() : name;
}

std::string interface_of(int socket) {
  sockaddr_storage own = {};
  socklen_t size = sizeof own;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size) != 0) return "";
  const sockaddr_storage plain = without_mapping(own);
  return interface_with(reinterpret_cast<const sockaddr*>(&plain));
}

bool is_loopback(const std::string& address) {
  in_addr four;
  in6_addr six;
  if (::inet_pton(AF_INET, address.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == IN_LOOPBACKNET;
  return address == "localhost" || (::inet_pton(AF_INET6, address.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six));
}

std::string address_for_others(const std::string& name) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return name;
  std::string address;
  for (const addrinfo* each = found; each != nullptr && address.empty(); each = each->ai_next) {
    std::array<char, INET_ADDRSTRLEN> text{};
    const in_addr& number = reinterpret_cast<const sockaddr_in*>(each->ai_addr)->sin_addr;
    const bool is_loopback = ntohl(number.s_addr) >> 24 == IN_LOOPBACKNET;
    if (!is_loopback && ::inet_ntop(AF_INET, &number, text.data(), text.size()) != nullptr) address = text.data();
  }
  ::freeaddrinfo(found);
  if (!address.empty()) return address;
  const auto own = own_addresses();
  return own.size() == 1 ? own.front() : name;
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return addresses;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET || (each->ifa_flags & IFF_LOOPBACK) != 0) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    const auto* address = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
    if (::inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size()) != nullptr) addresses.emplace_back(text.data());
  }
  ::freeifaddrs(all);
  return addresses;
}

}  // namespace accelerate::detail
