#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

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

/// Whether `line` asks for help before it names a program; `flags` gets the names of the other flags that it has.
bool asks_for_help(const std::vector<std::string>& line, std::vector<std::string>& flags);

/// `value` as Python's str() writes it: None, True, 1.0, text as it is.
std::string python_str(const nlohmann::json& value);

}  // namespace accelerate
