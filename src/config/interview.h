#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "console/asker.h"

namespace accelerate::detail {

/// Questions whose answers are booleans, numbers and words. Their names are config keys, such as `section.key`.
class Interview {
 public:
  explicit Interview(Asker& asker) : asker_(asker) {}

  /// Asks with [YES/no] or [yes/NO].
  bool yes(const std::string& name, const std::string& text, bool fallback = false);
  /// Asks until the answer is a whole number from `least` to `most`.
  int64_t integer(const std::string& name, const std::string& text, std::optional<int64_t> fallback, int64_t least = 0,
                  int64_t most = 1'000'000'000'000);
  /// Asks until the answer is a number of at least 0.
  double number(const std::string& name, const std::string& text, double fallback);
  /// Any text; without a fallback it must not be empty.
  std::string text(const std::string& name, const std::string& text, std::optional<std::string> fallback = {});
  /// One of `options`, as the file spells it; `shown` is what the user reads instead, if given.
  std::string choice(const std::string& name, const std::string& text, const std::vector<std::string>& options,
                     size_t fallback = 0, const std::vector<std::string>& shown = {});
  void tell(const std::string& note) { asker_.tell(note); }

 private:
  Asker& asker_;
};

}  // namespace accelerate::detail
