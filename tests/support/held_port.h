#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

namespace accelerate::testing {

/// A free port for a program that is told its number. It stays bound as long as this lives, so that the system gives it to nobody
/// else; it is not listened on, so that a program that sets SO_REUSEADDR, as stores and launchers do, can.
class HeldPort {
 public:
  HeldPort() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t size = sizeof address;
    const int on = 1;
    if (::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        ::bind(socket_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw std::runtime_error("no port could be bound");
    text_ = std::to_string(ntohs(address.sin_port));
  }
  ~HeldPort() { ::close(socket_); }
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;
  const std::string& text() const { return text_; }

 private:
  const int socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string text_;
};

}  // namespace accelerate::testing
