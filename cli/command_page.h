#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "arguments.h"
#include "console/flag.h"

namespace accelerate::detail::cli {

/// What shell completion offers where a word is expected.
enum class Offer { nothing, files, folders, choices, programs };

/// A flag of a command.
struct FlagPage : Flag {
  ArgumentMember member = {};
  /// The section of the help that it is shown in; empty: that of the command's only section.
  std::string group = {};

  /// What shell completion offers for its value,
  Offer offer() const;
  /// and the fixed list of values, if there is one.
  std::vector<std::string> offered() const;
};

/// A command as `--help`, completion and the man page describe it. All three are generated from this, so they never disagree.
struct CommandPage {
  /// "launch", or "config default" for a subcommand.
  std::string name;
  /// Half a line, for the list of commands.
  std::string summary;
  /// Paragraphs, each a line of any length.
  std::vector<std::string> description;
  std::vector<FlagPage> flags = {};
  /// What `--help` leaves out is shown by `--help-all`.
  bool has_help_all = false;
  /// What follows the flags in the usage line; may be empty.
  std::string operands = {};
  /// How many operands are required, if there are any. 0: one optional operand.
  size_t operand_count = 1;
  Offer offer = Offer::nothing;
  std::vector<std::string> choices = {};

  /// The largest number of operands.
  size_t most_operands() const { return operands.empty() ? 0 : std::max<size_t>(operand_count, 1); }
};

/// Every command, each followed by its subcommands.
std::vector<CommandPage> command_pages();

/// The page of the command `name`, which must be one of them.
CommandPage command_page(const std::string& name);

/// What `--help` prints for commands that have no help of their own.
std::string help_text(const CommandPage& page);

}  // namespace accelerate::detail::cli
