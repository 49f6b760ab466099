#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "support/run_program.h"

namespace accelerate::testing {

/// A program on a terminal of its own, typed to and read by the test.
class OnTerminal {
 public:
  explicit OnTerminal(std::vector<std::string> argv, unsigned short rows = 24, unsigned short columns = 200) {
    winsize size{rows, columns, 0, 0};
    pid_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
    if (pid_ != 0) return;
    for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
    ::setenv("TERM", "xterm", 1);
    std::vector<char*> pointers;
    for (auto& argument : argv) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    ::execvp(pointers.front(), pointers.data());
    ::_exit(127);
  }
  ~OnTerminal() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(terminal_);
  }
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;

  void type(const std::string& text) {
    EXPECT_EQ(::write(terminal_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  void resize(unsigned short rows, unsigned short columns) {
    winsize size{rows, columns, 0, 0};
    EXPECT_EQ(::ioctl(terminal_, TIOCSWINSZ, &size), 0);
  }

  /// Waits until `text` was written `count` times.
  void wait_for(const std::string& text, int count = 1) {
    wait_until("'" + text + "' on the terminal", [&] { return RunningProgram::occurrences(read(), text) >= count; });
  }

  /// Waits for the end; returns the exit code, or 128 + the signal.
  int wait() {
    int status = 0;
    wait_until("the end", [&] {
      read();
      return ::waitpid(pid_, &status, WNOHANG) == pid_;
    });
    read();
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  /// Waits until the terminal takes no more of what nobody reads.
  void wait_until_full() const {
    pollfd writer = {.fd = ::ioctl(terminal_, TIOCGPTPEER, O_WRONLY | O_NOCTTY | O_CLOEXEC), .events = POLLOUT, .revents = 0};
    wait_until("a full terminal", [&] { return ::poll(&writer, 1, 0) == 0; });
    ::close(writer.fd);
  }

  void signal(int number) const { ::kill(pid_, number); }

  /// Like `wait`, while nobody reads.
  int wait_unread() {
    int status = 0;
    wait_until("the end", [&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; });
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  /// The process group that has the terminal.
  pid_t foreground() const { return ::tcgetpgrp(terminal_); }

  /// True when the terminal shows what is typed and gives it line by line, as a shell leaves it.
  bool takes_lines() const {
    termios state{};
    return ::tcgetattr(terminal_, &state) == 0 && (state.c_lflag & ICANON) && (state.c_lflag & ECHO) && (state.c_lflag & ISIG);
  }

  /// Everything that was written until now.
  const std::string& read() {
    char buffer[4096];
    ::fcntl(terminal_, F_SETFL, O_NONBLOCK);
    for (ssize_t got = 0; (got = ::read(terminal_, buffer, sizeof buffer)) > 0;) screen_.append(buffer, static_cast<size_t>(got));
    return screen_;
  }

  const std::string& screen() const { return screen_; }

 private:
  pid_t pid_ = -1;
  int terminal_ = -1;
  std::string screen_;
};

}  // namespace accelerate::testing
