#include "console/flag.h"

#include <algorithm>
#include <iterator>
#include <sstream>

namespace accelerate::detail {

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

std::string flag_spelling(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace accelerate::detail
