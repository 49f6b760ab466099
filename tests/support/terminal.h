#pragma once

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace accelerate::testing {

/// Sets variables for the length of a scope; a null value unsets.
class ScopedVariables {
 public:
  explicit ScopedVariables(const std::map<std::string, const char*>& variables) {
    for (const auto& [name, value] : variables) {
      const char* old = std::getenv(name.c_str());
      before_[name] = old ? std::optional<std::string>(old) : std::nullopt;
      value ? ::setenv(name.c_str(), value, 1) : ::unsetenv(name.c_str());
    }
  }
  ScopedVariables(const ScopedVariables&) = delete;
  ~ScopedVariables() {
    for (const auto& [name, value] : before_) value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
  }

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

/// What a terminal of a given width makes of bytes: enough of one for what we send.
class ScreenModel {
 public:
  explicit ScreenModel(int columns) : columns_(columns) {}

  void feed(const std::string& bytes) {
    for (size_t i = 0; i < bytes.size();) i += take(bytes, i);
  }

  std::string line(size_t row) const {
    std::string text;
    if (row < lines_.size()) {
      for (const std::string& cell : lines_[row]) text += cell.empty() ? " " : cell;
    }
    return text.substr(0, text.find_last_not_of(' ') + 1);
  }

  size_t cursor_row() const { return row_; }
  int cursor_column() const { return column_; }
  bool wrapped() const { return wrapped_; }

 private:
  size_t take(const std::string& bytes, size_t at) {
    const char c = bytes[at];
    if (c == '\r') return column_ = 0, 1;
    if (c == '\n') return ++row_, 1;
    if (c == '\x1b') return escape(bytes, at);
    size_t length = 1;
    while (at + length < bytes.size() && (bytes[at + length] & 0xc0) == 0x80) ++length;
    put(bytes.substr(at, length));
    return length;
  }

  void put(const std::string& glyph) {
    if (column_ == columns_) {
      wrapped_ = true;
      column_ = 0;
      ++row_;
    }
    cells()[static_cast<size_t>(column_++)] = glyph;
  }

  size_t escape(const std::string& bytes, size_t at) {
    size_t end = at + 2;
    while (std::isdigit(static_cast<unsigned char>(bytes[end])) || bytes[end] == ';') ++end;
    const int number = end > at + 2 ? std::stoi(bytes.substr(at + 2, end - at - 2)) : 1;
    switch (bytes[end]) {
      case 'A':
        row_ -= static_cast<size_t>(number);
        break;
      case 'C':
        column_ += number;
        break;
      case 'm':  // colours are not kept
        break;
      case 'J':
        lines_.resize(row_ + 1);
        [[fallthrough]];
      case 'K':
        std::fill(cells().begin() + column_, cells().end(), "");
        break;
      default:
        ADD_FAILURE() << "unknown escape " << bytes.substr(at + 1, end - at);
    }
    return end - at + 1;
  }

  std::vector<std::string>& cells() {
    if (lines_.size() <= row_) lines_.resize(row_ + 1);
    lines_[row_].resize(static_cast<size_t>(columns_));
    return lines_[row_];
  }

  int columns_;
  std::vector<std::vector<std::string>> lines_;
  size_t row_ = 0;
  int column_ = 0;
  bool wrapped_ = false;
};

/// A real terminal, with the model on its other end.
class Terminal {
 public:
  explicit Terminal(unsigned short columns, unsigned short rows = 24, const char* locale = "C")
      : variables_({{"TERM", "xterm"}, {"LC_ALL", locale}}), screen_(columns) {
    winsize size{rows, columns, 0, 0};
    if (::openpty(&user_, &program_, nullptr, nullptr, &size) != 0) throw std::runtime_error("openpty failed");
  }
  ~Terminal() { ::close(user_), ::close(program_); }

  int fd() const { return program_; }

  void resize(unsigned short columns) {
    winsize size{24, columns, 0, 0};
    ASSERT_EQ(::ioctl(program_, TIOCSWINSZ, &size), 0);
  }

  /// Everything that was written until now. A bell marks the end, since a terminal passes bytes on when it likes.
  std::string read() {
    EXPECT_EQ(::write(program_, "\a", 1), 1);
    std::string bytes;
    for (char c = 0; ::read(user_, &c, 1) == 1 && c != '\a';) bytes += c;
    return bytes;
  }

  ScreenModel& screen() {
    screen_.feed(read());
    return screen_;
  }

 private:
  ScopedVariables variables_;
  ScreenModel screen_;
  int user_ = -1, program_ = -1;
};

/// A file to write to, and its content.
class LogFile {
 public:
  int fd() const { return ::fileno(file_); }
  std::string text() const {
    std::string content(static_cast<size_t>(::lseek(fd(), 0, SEEK_END)), '\0');
    EXPECT_EQ(::pread(fd(), content.data(), content.size(), 0), static_cast<ssize_t>(content.size()));
    return content;
  }
  ~LogFile() { std::fclose(file_); }

 private:
  std::FILE* file_ = std::tmpfile();
};

}  // namespace accelerate::testing
