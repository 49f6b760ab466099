#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

struct addrinfo;

namespace accelerate::detail {

/// A TCP connection to another launcher that carries messages: lines of fields. It never waits. A peer that is gone without a
/// word, as behind a cut link, is noticed by the kernel's own probes within half a minute.
class Connection {
 public:
  using Fields = std::vector<std::string>;

  /// Takes a connected socket.
  explicit Connection(int descriptor);
  /// Begins to connect to an address.
  explicit Connection(const addrinfo& address);
  ~Connection();
  Connection(Connection&& other) noexcept;
  Connection& operator=(Connection&& other) noexcept;

  int descriptor() const { return descriptor_; }
  /// What poll must wait for.
  short events() const;
  /// Reads what has arrived and writes what is to be sent, as far as that is possible at once.
  void serve();
  void send(const Fields& message);
  /// The next message that has arrived.
  std::optional<Fields> take();
  /// Sends what is left, for a second at most.
  void flush();
  bool is_open() const { return descriptor_ >= 0; }
  bool is_connected() const { return is_open() && !connecting_; }
  /// Why it is closed.
  const std::string& problem() const { return problem_; }

 private:
  void close(const std::string& problem);
  void read();
  void write();

  int descriptor_ = -1;
  bool connecting_ = false;
  std::string received_ = {}, unsent_ = {};
  std::deque<std::string> lines_ = {};
  std::string problem_ = {};
};

/// Why `host` cannot be reached at `port` within `patience`; empty when it can. It is connected to, and nothing is sent.
std::string connection_problem(const std::string& host, int port, std::chrono::milliseconds patience);

}  // namespace accelerate::detail
