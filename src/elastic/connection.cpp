#include "elastic/connection.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace accelerate::detail {
namespace {

/// More than any message of ours: whoever sends more is no launcher.
constexpr size_t kLongestLine = 16384, kMostUnsent = 1 << 20;
constexpr int kSilentSeconds = 20;

void set_option(int socket, int level, int option, int value) { ::setsockopt(socket, level, option, &value, sizeof value); }

/// Non-blocking, and closed by the kernel when the peer has acknowledged nothing for so long.
void prepare(int socket) {
  ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK);
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kSilentSeconds * 1000);
}

/// A field must not end itself or its line.
std::string encoded(const std::string& field) {
  std::string text;
  for (const char c : field) {
    if (c == '%' || static_cast<unsigned char>(c) < 0x20) {
      constexpr std::string_view kDigits = "0123456789abcdef";
      text += {'%', kDigits[static_cast<unsigned char>(c) >> 4], kDigits[static_cast<unsigned char>(c) & 15]};
    } else {
      text += c;
    }
  }
  return text;
}

std::string decoded(std::string_view text) {
  std::string field;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16).ptr == text.data() + i + 3) {
      field += static_cast<char>(value);
      i += 2;
    } else {
      field += text[i];
    }
  }
  return field;
}

Connection::Fields fields_of(std::string_view line) {
  Connection::Fields fields;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find('\t', begin), line.size());
    fields.push_back(decoded(line.substr(begin, end - begin)));
    begin = end + 1;
  }
  return fields;
}

}  // namespace

Connection::Connection(int descriptor) : descriptor_(descriptor) { prepare(descriptor_); }

Connection::Connection(const addrinfo& address)
    : descriptor_(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0)), connecting_(true) {
  if (descriptor_ < 0) {
    close(std::strerror(errno));
    return;
  }
  prepare(descriptor_);
  if (::connect(descriptor_, address.ai_addr, address.ai_addrlen) == 0) {
    connecting_ = false;
  } else if (errno != EINPROGRESS) {
    close(std::strerror(errno));
  }
}

Connection::~Connection() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Connection::Connection(Connection&& other) noexcept { *this = std::move(other); }

Connection& Connection::operator=(Connection&& other) noexcept {
  if (this == &other) return *this;
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = std::exchange(other.descriptor_, -1);
  connecting_ = other.connecting_;
  received_ = std::move(other.received_);
  unsent_ = std::move(other.unsent_);
  lines_ = std::move(other.lines_);
  problem_ = std::move(other.problem_);
  return *this;
}

void Connection::close(const std::string& problem) {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  problem_ = problem;
}

short Connection::events() const {
  return static_cast<short>(connecting_ ? POLLOUT : unsent_.empty() ? POLLIN : POLLIN | POLLOUT);
}

void Connection::serve() {
  if (connecting_ && is_open()) {
    pollfd ready = {.fd = descriptor_, .events = POLLOUT, .revents = 0};
    if (::poll(&ready, 1, 0) == 0) return;
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return close(std::strerror(error));
    connecting_ = false;
  }
  if (is_open()) write();
  if (is_open()) read();
}

void Connection::write() {
  while (!unsent_.empty()) {
    const ssize_t sent = ::send(descriptor_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (sent < 0) {
      // What the peer said before it closed is still to be read.
      unsent_.clear();
      problem_ = std::strerror(errno);
      return;
    }
    unsent_.erase(0, static_cast<size_t>(sent));
  }
}

void Connection::read() {
  std::array<char, 4096> bytes;
  for (;;) {
    const ssize_t count = ::recv(descriptor_, bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count < 0) return close(std::strerror(errno));
    if (count == 0) return close(problem_.empty() ? "the connection was closed" : problem_);
    received_.append(bytes.data(), static_cast<size_t>(count));
    for (size_t end = received_.find('\n'); end != received_.npos; end = received_.find('\n')) {
      lines_.push_back(received_.substr(0, end));
      received_.erase(0, end + 1);
    }
    if (received_.size() > kLongestLine) return close("it sent what no launcher sends");
    if (lines_.size() >= 64) return;  // the rest is read when these are taken
  }
}

void Connection::send(const Fields& message) {
  if (!is_open()) return;
  for (size_t i = 0; i < message.size(); ++i) unsent_ += (i > 0 ? "\t" : "") + encoded(message[i]);
  unsent_ += '\n';
  if (unsent_.size() > kMostUnsent) return close("it does not read what it is sent");
  if (!connecting_) write();
}

std::optional<Connection::Fields> Connection::take() {
  if (lines_.empty()) return std::nullopt;
  Fields fields = fields_of(lines_.front());
  lines_.pop_front();
  return fields;
}

void Connection::flush() {
  pollfd ready = {.fd = descriptor_, .events = POLLOUT, .revents = 0};
  while (is_open() && !connecting_ && !unsent_.empty() && ::poll(&ready, 1, 1000) > 0) write();
}

std::string connection_problem(const std::string& host, int port, std::chrono::milliseconds patience) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return ::gai_strerror(error);
  Connection connection(*found);
  ::freeaddrinfo(found);
  pollfd ready = {.fd = connection.descriptor(), .events = connection.events(), .revents = 0};
  ::poll(&ready, 1, static_cast<int>(patience.count()));
  connection.serve();
  if (connection.is_connected()) return "";
  return connection.is_open() ? "no answer: a firewall may drop what is sent to that port" : connection.problem();
}

}  // namespace accelerate::detail
