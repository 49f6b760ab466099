#pragma once

#include <map>
#include <string>
#include <vector>

namespace accelerate::detail {

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
  words      ///< one or more of `choices`, one behind the other
};

/// One flag of a command. Parsing, help, suggestions, completion and the man page are made of these rows alone.
struct Flag {
  /// With underscores and without the dashes before it. Hyphens are understood as well.
  const char* name;
  FlagKind kind;
  /// One sentence or two for the user.
  const char* help;
  /// The value when it is not given, as one would write it; nothing: there is none.
  const char* fallback = nullptr;
  /// The values there are, separated by spaces; nothing: any.
  const char* choices = nullptr;
  /// A letter that stands for it after a single dash, or 0.
  char letter = 0;
  /// Whether a single dash before its name does as well, as in mpirun's -np.
  bool single_dash = false;
  /// What help calls the value that follows, where the kind does not say it.
  const char* value_name = nullptr;
  /// Other names of choices; nothing: there are none.
  std::map<std::string, std::string> (*other_names)() = nullptr;

  /// Whether a value follows.
  bool takes_value() const { return kind != FlagKind::on && kind != FlagKind::off; }
  /// `choices`, one by one.
  std::vector<std::string> choice_list() const;
  /// The choice that `word` names; `word` itself when it is no other name of one.
  std::string choice_of(const std::string& word) const;
  /// Whether `word` names one of `choices`.
  bool has_choice(const std::string& word) const;
};

/// `name` as rows spell it: with underscores.
std::string flag_spelling(std::string name);

}  // namespace accelerate::detail
