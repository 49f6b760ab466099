#include "arguments.h"

#include <algorithm>

#include <accelerate/core/error.h>
#include "command_page.h"
#include "console/flag_reader.h"
#include "core/closest_name.h"

namespace accelerate::detail::cli {
namespace {

std::string see_help(const CommandPage& page) { return "`accelerate " + page.name + " --help` lists them all."; }

FlagTable table_of(const CommandPage& page) {
  FlagTable table;
  for (const auto& flag : page.flags) table.flags.push_back(&flag);
  return table;
}

std::string unknown_flag(const CommandPage& page, const std::string& given) {
  const std::string name = flag_spelling(given.substr(std::min(given.find_first_not_of('-'), given.size())));
  return "There is no flag --" + name + table_of(page).closest(name) + "; " + see_help(page);
}

void check_choice(const std::string& what, const std::string& given, const std::vector<std::string>& choices) {
  if (choices.empty() || std::find(choices.begin(), choices.end(), given) != choices.end()) return;
  std::string list;
  for (const auto& choice : choices) list += (list.empty() ? "" : ", ") + choice;
  throw UsageError(what + " is '" + given + "'; expected one of: " + list + closest_hint(given, choices) + ".");
}

void check_operands(const CommandPage& page, const std::vector<std::string>& operands) {
  const size_t wanted = page.operands.empty() ? 0 : page.operand_count, most = page.most_operands();
  if (operands.size() > most) throw UsageError("Unexpected argument '" + operands[most] + "'; " + see_help(page));
  if (operands.size() < wanted) throw UsageError("An argument is missing: " + page.operands + ".");
  if (!operands.empty()) check_choice("The argument", operands.front(), page.choices);
}

void set_argument(Arguments& arguments, const FlagPage& flag, std::vector<std::string> values) {
  const std::string name = std::string("--") + flag.name;
  for (auto& value : values) {
    if (value.empty()) throw UsageError(name + " is empty; give it a value: " + flag.placeholder() + ".");
    value = flag.choice_of(value);
    check_choice(name, value, flag.choice_list());
  }
  if (const auto* on = std::get_if<bool Arguments::*>(&flag.member)) arguments.** on = true;
  if (const auto* text = std::get_if<std::optional<std::string> Arguments::*>(&flag.member)) arguments.** text = values.front();
  if (const auto* list = std::get_if<std::vector<std::string> Arguments::*>(&flag.member)) arguments.** list = values;
}

}  // namespace

Arguments parse_arguments(const CommandPage& page, const std::vector<std::string>& given) {
  Arguments arguments;
  FlagTable table = table_of(page);
  table.unknown = [&page](const std::string& name) { return unknown_flag(page, name); };
  const FlagLine line = read_flags(table, given, [&arguments](const Flag& flag, const std::vector<std::string>& values) {
    set_argument(arguments, static_cast<const FlagPage&>(flag), values);
  });
  if (line.help) return {.help = true};
  arguments.operands = line.operands;
  check_operands(page, arguments.operands);
  return arguments;
}

}  // namespace accelerate::detail::cli
