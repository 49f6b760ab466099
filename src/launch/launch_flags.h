#pragma once

#include <span>
#include <string>
#include <vector>

namespace accelerate {

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

/// What follows a flag on the command line, and what it becomes.
enum class FlagKind {
  on,        ///< nothing follows; true
  off,       ///< nothing follows; false
  text,      ///< any text, or one of `choices`
  file,      ///< text that names a file
  folder,    ///< text that names a folder
  integer,   ///< a whole number
  number,    ///< a number that may have a fraction
  truth,     ///< yes or no in one of Python's spellings, kept as it was written
  boolean,   ///< the same, turned into true or false
  bit,       ///< the same, turned into 1 or 0
  booleans,  ///< three of them, joined by commas
  texts      ///< text; the flag may be given again, and all are kept
};

/// One flag of `accelerate launch`. Parsing, help, suggestions, completion and the man page are made of these rows alone.
struct LaunchFlag {
  /// With underscores and without the dashes before it. Hyphens are understood as well.
  const char* name;
  FlagGroup group;
  FlagKind kind;
  /// One sentence or two for the user.
  const char* help;
  /// The value when it is not given, as one would write it; nothing: there is none.
  const char* fallback = nullptr;
  /// The values there are, separated by spaces; nothing: any.
  const char* choices = nullptr;
  /// A letter that stands for it after a single dash, or 0.
  char letter = 0;
  /// Whether the top of a config file has a key for it. The keys of a section feed the flags of the section's group.
  bool top_key = false;
  /// The name of its value and of its key in a config file, where that is not `name`.
  const char* value_name = nullptr;

  /// The name of its value.
  const char* destination() const { return value_name != nullptr ? value_name : name; }
  /// Whether a value follows.
  bool takes_value() const { return kind != FlagKind::on && kind != FlagKind::off; }
  /// `choices`, one by one.
  std::vector<std::string> choice_list() const;
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
};

/// All flags, section by section.
std::span<const LaunchFlag> launch_flags();

/// All sections, in the order of FlagGroup.
std::span<const FlagGroupInfo> launch_flag_groups();

/// The flag of this name, spelled with hyphens or underscores and without leading dashes; null when there is none.
const LaunchFlag* find_launch_flag(std::string name);

/// The flag of this letter; null when there is none.
const LaunchFlag* find_launch_flag(char letter);

/// What a line asks to be told.
struct LaunchHelp {
  /// Names of the other flags that it has: only sections that matter to them are shown.
  std::vector<std::string> flags = {};
  /// `--help-all`: every section is shown.
  bool all = false;
};

/// The text of it.
std::string launch_help(const LaunchHelp& asked);

}  // namespace accelerate
