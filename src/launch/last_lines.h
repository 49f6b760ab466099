#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate {

/// The last lines of a rank, for the report about its end.
class LastLines {
 public:
  /// Takes complete lines, each with its newline.
  void add(std::string_view lines);

  /// The last 10, without control sequences, each cut to 300 columns, and `rest`, which has no newline yet, where there is one.
  std::vector<std::string> texts(const std::vector<std::string>& rests) const;

 private:
  std::deque<std::string> lines_;
};

}  // namespace accelerate
