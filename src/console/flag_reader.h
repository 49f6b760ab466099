#pragma once

#include <functional>
#include <string>
#include <vector>

#include "console/flag.h"

namespace accelerate::detail {

/// How a command reads the words behind its name.
struct FlagTable {
  std::vector<const Flag*> flags;
  /// From the first word that is no flag on, or behind --, nothing is a flag: a program and its arguments follow.
  bool program_follows = false;
  /// The message for a flag that is none, given as it was written.
  std::function<std::string(const std::string& given)> unknown;

  /// The flag of this name, spelled with hyphens or underscores and without leading dashes; null when there is none.
  const Flag* find(const std::string& name) const;
  /// The flag of this letter; null when there is none.
  const Flag* find(char letter) const;
  /// ". The closest is --NAME" for the name of a flag that is none, or nothing.
  std::string closest(const std::string& name) const;
};

/// What a line says beside its flags.
struct FlagLine {
  /// -h or --help was in it; nothing behind that was read.
  bool help = false;
  std::vector<std::string> operands = {};
};

/// What becomes of a flag that was given: the values that followed it, none for a flag that takes none.
using SetFlag = std::function<void(const Flag& flag, const std::vector<std::string>& values)>;

/// Reads `--flag value`, `--flag=value`, `-f value`, `-fvalue` and joined letters, word by word, and calls `set` for each flag.
/// UsageError names the flag that is unknown, lacks its value or has one that it does not take.
FlagLine read_flags(const FlagTable& table, const std::vector<std::string>& line, const SetFlag& set);

}  // namespace accelerate::detail
