#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/launch_flags.h"
#include "launch/launch_settings.h"

namespace accelerate::detail {

/// What a command line of `accelerate launch` says.
struct LaunchArguments {
  /// What was given, and the defaults of the flags that have one.
  LaunchSettings settings = {};
  /// Keys of the flags that the command line has.
  std::set<std::string> given = {};

  /// Whether the command line has a flag that sets this member.
  bool gave(const SettingMember& member) const { return given.contains(key_of(member)); }
};

/// Parses the words after `accelerate launch`. Nothing after the program's name is a flag of ours. UsageError names a flag that
/// is unknown, lacks its value or has an invalid one.
LaunchArguments parse_launch_arguments(const std::vector<std::string>& line);

/// The help that `line` asks for, if it has --help or --help-all before the program.
std::optional<LaunchHelp> asked_help(const std::vector<std::string>& line);

}  // namespace accelerate::detail
