#include "console/flag.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <sstream>

namespace accelerate::detail {
namespace {

constexpr size_t kChoicesInAPlaceholder = 5;

}  // namespace

std::vector<std::string> Flag::choice_list() const {
  std::istringstream words(choices != nullptr ? choices : "");
  return {std::istream_iterator<std::string>(words), {}};
}

std::string Flag::choice_of(const std::string& word) const {
  if (other_names == nullptr) return word;
  const auto names = other_names();
  const auto found = names.find(word);
  return found == names.end() ? word : found->second;
}

bool Flag::has_choice(const std::string& word) const {
  const auto list = choice_list();
  return std::find(list.begin(), list.end(), choice_of(word)) != list.end();
}

std::string Flag::placeholder() const {
  if (!takes_value()) return "";
  if (value_name != nullptr) return value_name;
  if (const auto list = choice_list(); !list.empty())
    return list.size() > kChoicesInAPlaceholder ? "NAME" : fmt::format("{{{}}}", fmt::join(list, ","));
  switch (kind) {
    case FlagKind::integer:
    case FlagKind::number:
      return "NUMBER";
    case FlagKind::file:
      return "FILE";
    case FlagKind::folder:
      return "FOLDER";
    case FlagKind::truth:
    case FlagKind::boolean:
    case FlagKind::bit:
      return "{true,false}";
    default:
      return "TEXT";
  }
}

std::string Flag::help_with_choices() const {
  const auto list = choice_list();
  const bool shown = list.empty() || (value_name == nullptr && list.size() <= kChoicesInAPlaceholder);
  return shown ? help : fmt::format("{}: {}", help, fmt::join(list, ", "));
}

std::string flag_spelling(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace accelerate::detail
