#pragma once

#include <poll.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::detail {

/// What is sent instead of a signal to a launcher on another host: "SIGTERM\n".
std::string signal_line(int signal);

/// Signals that arrive as lines on stdin, and SIGTERM when stdin ends: the connection, or who made it, is gone.
class StdinSignals {
 public:
  /// Not `wanted`: stdin is not looked at.
  explicit StdinSignals(bool wanted) : open_(wanted) {}

  void add_to(std::vector<pollfd>& watched) const;
  /// The next signal that has arrived, if any. Never waits.
  std::optional<int> take();

 private:
  void read();

  bool open_;
  std::string begun_ = {};  // a line without its end
  std::deque<int> arrived_ = {};
};

}  // namespace accelerate::detail
