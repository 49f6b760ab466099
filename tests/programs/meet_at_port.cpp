// A worker of two: rank 0 listens on MASTER_PORT, rank 1 goes there, and both end with 0 when they are of the same launch.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

int fail(const char* what) {
  std::fprintf(stderr, "%s %s: %s\n", what, std::getenv("MASTER_PORT"), std::strerror(errno));
  return 1;
}

sockaddr_in6 address_of(const char* host) {
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT"))));
  ::inet_pton(AF_INET6, host, &address.sin6_addr);
  return address;
}

int listen_and_meet() {
  const int server = ::socket(AF_INET6, SOCK_STREAM, 0);
  const int on = 1, off = 0;
  ::setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  ::setsockopt(server, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  const sockaddr_in6 any = address_of("::");
  if (::bind(server, reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0) return fail("cannot bind");
  if (::listen(server, 8) != 0) return fail("cannot listen on");
  const int peer = ::accept(server, nullptr, nullptr);
  pid_t launcher = 0;
  if (::recv(peer, &launcher, sizeof launcher, MSG_WAITALL) != sizeof launcher) return fail("no message arrived at");
  return launcher == ::getppid() ? 0 : fail("an unrelated process connected to");
}

int go_and_meet() {
  const sockaddr_in6 there = address_of("::ffff:127.0.0.1");
  for (;;) {
    const int client = ::socket(AF_INET6, SOCK_STREAM, 0);
    if (::connect(client, reinterpret_cast<const sockaddr*>(&there), sizeof there) == 0) {
      const pid_t launcher = ::getppid();
      return ::send(client, &launcher, sizeof launcher, MSG_NOSIGNAL) == sizeof launcher ? 0 : fail("cannot speak at");
    }
    if (errno != ECONNREFUSED) return fail("cannot reach");
    ::close(client);
    ::usleep(2000);  // rank 0 is not there yet
  }
}

}  // namespace

int main() { return std::string(std::getenv("RANK")) == "0" ? listen_and_meet() : go_and_meet(); }
