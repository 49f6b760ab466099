#pragma once

#include <functional>
#include <string>
#include <vector>

#include "console/flag.h"

namespace accelerate::detail {

/// How a command parses its arguments.
struct FlagTable {
  std::vector<const Flag*> flags;
  /// The first word that is not a flag, or --, ends the flags: a program and its arguments follow.
  bool program_follows = false;
  /// The message for an unknown flag, given as it was written.
  std::function<std::string(const std::string& given)> unknown;

  /// The flag of this name, spelled with hyphens or underscores and without leading dashes; null when there is none.
  const Flag* find(const std::string& name) const;
  /// The flag of this letter; null when there is none.
  const Flag* find(char letter) const;
  /// ". The closest is --NAME" for an unknown flag, or nothing.
  std::string closest(const std::string& name) const;
};

/// The rest of a command line, apart from its flags.
struct FlagLine {
  /// -h or --help was found; nothing after it was read.
  bool help = false;
  std::vector<std::string> operands = {};
};

/// Called for each flag with its values; a switch has none.
using SetFlag = std::function<void(const Flag& flag, const std::vector<std::string>& values)>;

/// Reads `--flag value`, `--flag=value`, `-f value`, `-fvalue` and joined letters, word by word, and calls `set` for each flag.
/// UsageError names the flag that is unknown, lacks its value or has one that it does not take.
FlagLine read_flags(const FlagTable& table, const std::vector<std::string>& line, const SetFlag& set);

}  // namespace accelerate::detail
