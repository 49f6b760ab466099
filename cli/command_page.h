#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "arguments.h"
#include "console/flag.h"

namespace accelerate::detail::cli {

/// What a shell offers where a word is expected.
enum class Offer { nothing, files, folders, choices, programs };

/// A flag of a command.
struct FlagPage : Flag {
  ArgumentMember member = {};
  /// The section of the help that it is shown in; empty: that of the command's only section.
  std::string group = {};

  /// The name of the value that follows, as "FILE"; empty: none follows.
  std::string value() const;
  /// What a shell offers for that value,
  Offer offer() const;
  /// and the values there are, where that is all.
  std::vector<std::string> offered() const;
};

/// All that help, completion and manual say of a command. They are made of these alone, so they never disagree.
struct CommandPage {
  /// "launch", or "config default" for a command below another.
  std::string name;
  /// Half a line for lists of commands.
  std::string summary;
  /// Paragraphs, each a line of any length.
  std::vector<std::string> description;
  std::vector<FlagPage> flags = {};
  /// What `--help` leaves out is shown by `--help-all`.
  bool has_help_all = false;
  /// What stands behind the flags in the usage; empty: nothing does.
  std::string operands = {};
  /// How many are needed, where there are any. 0: one may be given.
  size_t operand_count = 1;
  Offer offer = Offer::nothing;
  std::vector<std::string> choices = {};

  /// How many may be given.
  size_t most_operands() const { return operands.empty() ? 0 : std::max<size_t>(operand_count, 1); }
};

/// Every command, those below another behind it.
std::vector<CommandPage> command_pages();

/// The page of the command `name`, which must be one of them.
CommandPage command_page(const std::string& name);

/// What `--help` prints for commands that have no help of their own.
std::string help_text(const CommandPage& page);

}  // namespace accelerate::detail::cli
