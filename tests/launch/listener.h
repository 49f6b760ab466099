#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace accelerate::testing {

/// Listens at `address` on `port` (0: one of the system's choice), until it goes away.
class Listener {
 public:
  explicit Listener(const char* address, int port = 0) {
    sockaddr_storage storage = {};
    socklen_t size = sizeof(sockaddr_in);
    auto& four = reinterpret_cast<sockaddr_in&>(storage);
    auto& six = reinterpret_cast<sockaddr_in6&>(storage);
    const bool is_six = std::string(address).find(':') != std::string::npos;
    storage.ss_family = is_six ? AF_INET6 : AF_INET;
    if (is_six) size = sizeof(sockaddr_in6);
    ::inet_pton(storage.ss_family, address, is_six ? static_cast<void*>(&six.sin6_addr) : &four.sin_addr);
    (is_six ? six.sin6_port : four.sin_port) = htons(static_cast<uint16_t>(port));
    socket_ = ::socket(storage.ss_family, SOCK_STREAM, 0);
    const bool listens = ::bind(socket_, reinterpret_cast<sockaddr*>(&storage), size) == 0 && ::listen(socket_, 1) == 0;
    EXPECT_TRUE(listens) << address;
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&storage), &size);
    port_ = ntohs(is_six ? six.sin6_port : four.sin_port);
  }
  ~Listener() { ::close(socket_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  int port() const { return port_; }

 private:
  int socket_ = -1;
  int port_ = 0;
};

}  // namespace accelerate::testing
