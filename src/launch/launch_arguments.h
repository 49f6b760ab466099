#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/launch_flags.h"

namespace accelerate {

/// What a command line of `accelerate launch` says, by the names of launch_flags.
struct LaunchArguments {
  /// Every value that a flag may have: the one given, else the flag's own default, else null. Keys of a config file that no
  /// flag has may join them.
  nlohmann::json values = nlohmann::json::object();
  /// Names of the values that the command line gave.
  std::set<std::string> given = {};
  /// The program and its arguments.
  std::vector<std::string> command = {};

  /// Whether the value of this name is true.
  bool is_on(const std::string& name) const;
  /// The value of this name as Python's str() writes it.
  std::string text(const std::string& name) const;
};

/// Reads the words after `accelerate launch`. From the program's name on, nothing is a flag. UsageError names the flag that is
/// unknown, lacks its value or has a wrong one.
LaunchArguments parse_launch_arguments(const std::vector<std::string>& line);

/// What `line` asks to be told, if it has --help or --help-all before it names a program.
std::optional<LaunchHelp> asked_help(const std::vector<std::string>& line);

/// `value` as Python's str() writes it: None, True, 1.0, text as it is.
std::string python_str(const nlohmann::json& value);

}  // namespace accelerate
