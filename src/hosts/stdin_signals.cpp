#include "hosts/stdin_signals.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace accelerate::detail {
namespace {

constexpr std::array kAccepted = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
constexpr size_t kLongestLine = 64;

}  // namespace

std::string signal_line(int signal) { return std::string("SIG") + ::sigabbrev_np(signal) + "\n"; }

void StdinSignals::add_to(std::vector<pollfd>& watched) const {
  if (open_) watched.push_back({.fd = STDIN_FILENO, .events = POLLIN, .revents = 0});
}

std::optional<int> StdinSignals::take() {
  if (open_) read();
  if (arrived_.empty()) return std::nullopt;
  const int signal = arrived_.front();
  arrived_.pop_front();
  return signal;
}

void StdinSignals::read() {
  // Others may share what is behind stdin, so it is asked first instead of being made non-blocking.
  pollfd stdin_now = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (::poll(&stdin_now, 1, 0) <= 0) return;
  std::array<char, 256> buffer{};
  const ssize_t got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got <= 0) {
    open_ = false;
    return arrived_.push_back(SIGTERM);
  }
  for (ssize_t i = 0; i < got; ++i) {
    begun_ += buffer[static_cast<size_t>(i)];
    for (const int signal : kAccepted) {
      if (begun_ == signal_line(signal)) arrived_.push_back(signal);
    }
    if (begun_.back() == '\n' || begun_.size() > kLongestLine) begun_.clear();
  }
}

}  // namespace accelerate::detail
