#pragma once

#include <map>
#include <string>
#include <vector>

namespace accelerate::detail {

/// The type of a flag's value.
enum class FlagKind {
  on,        ///< nothing follows; true
  off,       ///< nothing follows; false
  text,      ///< any text, or one of `choices`
  file,      ///< text that names a file
  folder,    ///< text that names a folder
  integer,   ///< an integer
  number,    ///< a number that may have a fraction
  truth,     ///< yes or no in one of Python's spellings, kept as it was written
  boolean,   ///< the same, turned into true or false
  bit,       ///< the same, turned into 1 or 0
  booleans,  ///< three of them, joined by commas
  words      ///< one or more of `choices`, one after the other
};

/// One flag of a command. Parsing, help, suggestions, completion and the man page are all generated from these rows.
struct Flag {
  /// With underscores and without leading dashes. Hyphens are accepted as well.
  const char* name;
  FlagKind kind;
  /// One sentence or two for the user.
  const char* help;
  /// The default, as one would write it; null: there is none.
  const char* fallback = nullptr;
  /// The allowed values, separated by spaces; null: any.
  const char* choices = nullptr;
  /// Its short form, a letter after a single dash, or 0.
  char letter = 0;
  /// Whether its name may have a single dash, as in mpirun's -np.
  bool single_dash = false;
  /// The placeholder of its value in help, if not the one of its kind.
  const char* value_name = nullptr;
  /// Whether the word after it is its value even if that begins with two dashes: options of another program.
  bool value_is_options = false;
  /// Aliases of choices, if any.
  std::map<std::string, std::string> (*other_names)() = nullptr;

  /// Whether it takes a value.
  bool takes_value() const { return kind != FlagKind::on && kind != FlagKind::off; }
  /// `choices`, one by one.
  std::vector<std::string> choice_list() const;
  /// The choice that `word` is an alias of; `word` itself when it is not an alias.
  std::string choice_of(const std::string& word) const;
  /// Whether `word` names one of `choices`.
  bool has_choice(const std::string& word) const;
  /// What stands for its value in help and on the man page: "FILE", or "{no,fp16}". Empty when it takes none.
  std::string placeholder() const;
  /// `help`, and after it the choices that the placeholder has no room for.
  std::string help_with_choices() const;
};

/// `name` as rows spell it: with underscores.
std::string flag_spelling(std::string name);

}  // namespace accelerate::detail
