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

/// How the value of a flag becomes the text of a variable for Python programs; nothing: it does not.
enum class PassedAs { nothing, text, lower_case };

/// One flag of `accelerate launch`, with all that becomes of its value.
struct LaunchFlag : Flag {
  FlagGroup group;
  /// The member that it sets. None: its value is passed on to Python programs, or has no effect.
  SettingMember member = {};
  /// Whether the top of a config file has a key for it. The keys of a section feed the flags of the section's group.
  bool top_key = false;
  /// Its key in a config file, where that is not `name`.
  const char* other_key = nullptr;
  PassedAs passed = PassedAs::nothing;
  /// The variable for it, where that is not the prefix of the group and `name` in capitals.
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
  /// The flag whose presence on the line makes the section matter; nothing: it always does.
  const char* shown_with = nullptr;
  /// The section of a config file whose keys feed its flags; nothing: there is none.
  const char* section = nullptr;
  /// C++ programs make nothing of its flags, or have other names for them: `--help` leaves it out, `--help-all` does not.
  bool only_in_help_all = false;
  /// What variables for its flags begin with.
  const char* variable_prefix = "";
};

/// All flags, section by section.
std::span<const LaunchFlag> launch_flags();

/// All sections, in the order of FlagGroup.
std::span<const FlagGroupInfo> launch_flag_groups();

/// The same for the reader of flags; what it says of a flag that is none is the caller's to add.
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

/// What a line asks to be told.
struct LaunchHelp {
  /// Names of the other flags that it has: only sections that matter to them are shown.
  std::vector<std::string> flags = {};
  /// `--help-all`: every section is shown.
  bool all = false;
};

/// The text of it.
std::string launch_help(const LaunchHelp& asked);

}  // namespace accelerate::detail
