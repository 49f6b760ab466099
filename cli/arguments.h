#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "command_page.h"

namespace accelerate::cli {

/// What was given to a command, after its name.
struct Arguments {
  /// -h or --help was among them.
  bool help = false;
  /// Values of flags by their name in the page; what was given last counts. A flag without a value has an empty one.
  std::map<std::string, std::string> flags = {};
  std::vector<std::string> operands = {};

  /// What was given to flags that take several values, those of the last one.
  std::map<std::string, std::vector<std::string>> lists = {};

  std::optional<std::string> value(const std::string& flag) const;
  /// All values of a flag that takes several, or `otherwise`.
  std::vector<std::string> values(const std::string& flag, const std::vector<std::string>& otherwise) const;
};

/// Reads `given` as `page` has it: flags in both spellings, `--flag value` or `--flag=value`. UsageError names what it does not
/// know, with the closest of what it does, and values or operands that are missing, too many or none of the choices.
Arguments parse_arguments(const CommandPage& page, const std::vector<std::string>& given);

}  // namespace accelerate::cli
