#include "arguments.h"

#include <algorithm>

#include <accelerate/core/error.h>
#include "core/closest_name.h"

namespace accelerate::cli {
namespace {

std::string see_help(const CommandPage& page) { return "`accelerate " + page.name + " --help` lists them all."; }

// A flag as it was written: its name without dashes, and what stood behind "=".
struct GivenFlag {
  std::string name;
  std::optional<std::string> value = {};
};

GivenFlag split_flag(const std::string& word) {
  const std::string bare = word.substr(std::min(word.find_first_not_of('-'), word.size()));
  const auto equals = bare.find('=');
  if (equals == std::string::npos) return {bare};
  return {bare.substr(0, equals), bare.substr(equals + 1)};
}

const FlagPage& flag_named(const CommandPage& page, std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  std::vector<std::string> known = {"help"};
  for (const auto& flag : page.flags) {
    if (flag.name == name) return flag;
    known.push_back(flag.name);
  }
  throw UsageError("There is no flag --" + name + closest_hint(name, known, "--") + "; " + see_help(page));
}

void check_choice(const std::string& what, const std::string& given, const std::vector<std::string>& choices) {
  if (choices.empty() || std::find(choices.begin(), choices.end(), given) != choices.end()) return;
  std::string list;
  for (const auto& choice : choices) list += (list.empty() ? "" : ", ") + choice;
  throw UsageError(what + " is '" + given + "', which is none of: " + list + closest_hint(given, choices) + ".");
}

bool is_choice(const std::string& word, const FlagPage& flag) {
  return std::find(flag.choices.begin(), flag.choices.end(), flag.choice_of(word)) != flag.choices.end();
}

void check_operands(const CommandPage& page, const std::vector<std::string>& operands) {
  const size_t wanted = page.operands.empty() ? 0 : page.operand_count, most = page.most_operands();
  if (operands.size() > most) throw UsageError("'" + operands[most] + "' is one argument too many; " + see_help(page));
  if (operands.size() < wanted) throw UsageError("An argument is missing: " + page.operands + ".");
  if (!operands.empty()) check_choice("The argument", operands.front(), page.choices);
}

}  // namespace

std::optional<std::string> Arguments::value(const std::string& flag) const {
  const auto found = flags.find(flag);
  return found == flags.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> Arguments::values(const std::string& flag, const std::vector<std::string>& otherwise) const {
  const auto found = lists.find(flag);
  return found == lists.end() ? otherwise : found->second;
}

Arguments parse_arguments(const CommandPage& page, const std::vector<std::string>& given) {
  Arguments arguments;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] == "-h" || given[i] == "--help") return {.help = true};
    if (!given[i].starts_with("-")) {
      arguments.operands.push_back(given[i]);
      continue;
    }
    const GivenFlag word = split_flag(given[i]);
    const FlagPage flag = flag_named(page, word.name);
    std::optional<std::string> value = word.value;
    if (flag.value.empty()) {
      if (value) throw UsageError("--" + flag.name + " takes no value and was given '" + *value + "'.");
    } else if (!value) {
      if (++i == given.size()) throw UsageError("--" + flag.name + " needs a value behind it: " + flag.value + ".");
      value = given[i];
    }
    if (value && value->empty()) throw UsageError("--" + flag.name + " is empty; give it a value: " + flag.value + ".");
    if (value) value = flag.choice_of(*value);
    check_choice("--" + flag.name, value.value_or(""), flag.choices);
    arguments.flags[flag.name] = value.value_or("");
    if (!flag.repeats) continue;
    auto& list = arguments.lists[flag.name] = {*value};
    // Up to the first word that is none of them: a model may follow.
    while (i + 1 < given.size() && is_choice(given[i + 1], flag)) list.push_back(flag.choice_of(given[++i]));
  }
  check_operands(page, arguments.operands);
  return arguments;
}

}  // namespace accelerate::cli
