#pragma once

#include <span>
#include <string>
#include <vector>

#include "console/flag_reader.h"
#include "launch/launch_settings.h"

namespace accelerate::detail {

/// Sections of `accelerate launch --help`, in its order.
enum class FlagGroup {
  general,
  hardware,
  resources,
  distributed,
  output,
  failures,
  mpi,
  cluster,
  torchrun,
  paradigm,
  compiler,
  tpu,
  deepspeed,
  fsdp,
  megatron,
  fp8,
  parallelism,
  without_effect
};

/// How a flag's value is written to an environment variable for Python programs; none: it is not.
enum class PassedAs { nothing, text, lower_case };

/// One flag of `accelerate launch`, and where its value goes.
struct LaunchFlag : Flag {
  FlagGroup group;
  /// The member that it sets. None: its value is passed on to Python programs, or has no effect.
  SettingMember member = {};
  /// Whether it has a top-level key in a config file. The keys of a section set the flags of the section's group.
  bool top_key = false;
  /// Its key in a config file, if different from `name`.
  const char* other_key = nullptr;
  PassedAs passed = PassedAs::nothing;
  /// Its environment variable, if different from the group's prefix and `name` in capitals.
  const char* other_variable = nullptr;

  std::string key() const { return other_key != nullptr ? other_key : name; }
  bool has_member() const { return !std::holds_alternative<std::monostate>(member); }
  /// Whether its value may be of a kind other than the flag's.
  bool holds_any_kind() const { return !has_member() || std::holds_alternative<PythonValue LaunchSettings::*>(member); }
};

/// One section of the help.
struct FlagGroupInfo {
  FlagGroup group;
  const char* title;
  /// The flag that selects the section for `--help`; none: the section is always shown.
  const char* shown_with = nullptr;
  /// The section of a config file whose keys set its flags, if any.
  const char* section = nullptr;
  /// Its flags have no effect on C++ programs, are aliases, or are many: `--help` shows them only beside a flag that selects
  /// them.
  bool only_in_help_all = false;
  /// The prefix of its environment variables.
  const char* variable_prefix = "";
};

/// All flags, section by section.
std::span<const LaunchFlag> launch_flags();

/// All sections, in the order of FlagGroup.
std::span<const FlagGroupInfo> launch_flag_groups();

/// The same for the flag parser; the caller adds the message for unknown flags.
FlagTable launch_flag_table();

/// The flag of this name, spelled with hyphens or underscores and without leading dashes; null when there is none.
const LaunchFlag* find_launch_flag(const std::string& name);

/// The flag of this letter; null when there is none.
const LaunchFlag* find_launch_flag(char letter);

/// The flag of this key of a config file; null when there is none.
const LaunchFlag* flag_of_key(const std::string& key);

/// The key of the flags that set this member.
std::string key_of(const SettingMember& member);

/// The value that `flag` has in `settings`; null when there is none.
PythonValue value_of(const LaunchSettings& settings, const LaunchFlag& flag);

/// Gives `flag` a value, of the kind of its member.
void set_value(LaunchSettings& settings, const LaunchFlag& flag, const PythonValue& value);

/// What kind of help a command line asks for.
struct LaunchHelp {
  /// The other flags on the line: only sections that apply to them are shown.
  std::vector<std::string> flags = {};
  /// `--help-all`: every section is shown.
  bool all = false;
};

/// The help text.
std::string launch_help(const LaunchHelp& asked);

}  // namespace accelerate::detail
