#include <accelerate/launch/port_reservation.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <accelerate/core/error.h>

namespace accelerate {
namespace {

constexpr int kFirstPort = 10'000;  // lower ports belong to services
constexpr int kLastPort = 65'535;

class Socket {
 public:
  explicit Socket(int family) : descriptor_(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// Like rank 0's store: SO_REUSEADDR ignores connections of an earlier run in TIME_WAIT, and only listen() fails when another
// program listens already.
bool can_listen(const Socket& socket, const sockaddr* address, socklen_t size) {
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  return ::bind(socket.get(), address, size) == 0 && ::listen(socket.get(), 1) == 0;
}

// Listens on `port` at all addresses, and closes the socket again.
bool port_is_free(int port) {
  const Socket six(AF_INET6);
  if (six.get() >= 0) {
    // A dual-stack wildcard conflicts with listeners on any address of either family, as rank 0's store would.
    const int off = 0;
    ::setsockopt(six.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_in6 any = {};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(static_cast<uint16_t>(port));
    if (can_listen(six, reinterpret_cast<const sockaddr*>(&any), sizeof any)) return true;
    if (errno != EADDRNOTAVAIL) return false;  // EADDRNOTAVAIL: the kernel has IPv6, but it is disabled
  }
  const Socket four(AF_INET);
  sockaddr_in any = {};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<uint16_t>(port));
  return can_listen(four, reinterpret_cast<const sockaddr*>(&any), sizeof any);
}

// False when another launch has the lock. An abstract address leaves no file, is released by the kernel when its owner dies, and
// is shared by exactly the processes that share the port: those of one network namespace.
bool bind_lock(int lock, int port) {
  const std::string name = "accelerate/port/" + std::to_string(port);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  // Where such sockets are forbidden, there is no lock, but the launch still works.
  return ::bind(lock, reinterpret_cast<const sockaddr*>(&address), size) == 0 || errno != EADDRINUSE;
}

// All candidate ports, those outside the ephemeral range first; each part starts at a random port.
std::vector<int> candidate_ports() {
  int low = 32'768, high = 60'999;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> low >> high;
  std::vector<int> outside, inside;
  for (int port = kFirstPort; port <= kLastPort; ++port) (port < low || port > high ? outside : inside).push_back(port);
  std::random_device random;
  std::vector<int> ports;
  for (const auto& part : {outside, inside}) {
    const size_t start = part.empty() ? 0 : random() % part.size();
    ports.insert(ports.end(), part.begin() + static_cast<std::ptrdiff_t>(start), part.end());
    ports.insert(ports.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(start));
  }
  return ports;
}

}  // namespace

bool PortReservation::take(int port) {
  release();
  lock_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  // The lock comes first: probing a port that another launch has chosen could make its rank 0 fail.
  if (bind_lock(lock_, port) && port_is_free(port)) return true;
  release();
  return false;
}

int PortReservation::take_any() {
  for (int port : candidate_ports()) {
    if (take(port)) return port;
  }
  throw DistributedError("No free port was found for rank 0 to listen on.");
}

void PortReservation::release() {
  if (lock_ >= 0) ::close(lock_);
  lock_ = -1;
}

}  // namespace accelerate
