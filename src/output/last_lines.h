#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// The last lines of a rank, or of a console, for the report about the end of a rank.
class LastLines {
 public:
  /// As many as hold the message of an uncaught exception and all stack frames behind it.
  static constexpr size_t kWithStackFrames = 256;
  /// As many as are quoted.
  static constexpr size_t kQuoted = 10;

  explicit LastLines(size_t kept = kWithStackFrames) : kept_(kept) {}

  /// Takes complete lines, each with its newline.
  void add(std::string_view lines);

  /// What to quote: the last 10, and of an uncaught C++ exception the lines that name it (`terminate called`, `what():`) also
  /// when more than that follow. Stack frames of LibTorch are counted instead, and empty lines at the end left out. `rests` are
  /// lines without a newline yet. Without control sequences, each cut to 300 columns.
  std::vector<std::string> quoted(const std::vector<std::string>& rests) const;

  /// True when the last lines, but for empty ones, are these, as `quoted` would write them.
  bool end_with(const std::vector<std::string>& texts) const;

 private:
  size_t kept_;
  std::deque<std::string> lines_ = {};
};

}  // namespace accelerate::detail
