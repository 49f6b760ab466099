#include "console/flag_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include <accelerate/core/error.h>
#include "core/closest_name.h"

namespace accelerate::detail {
namespace {

bool is_flag(const std::string& word) { return word.size() > 1 && word.front() == '-'; }

class FlagReader {
 public:
  FlagReader(const FlagTable& table, const std::vector<std::string>& line, const SetFlag& set)
      : table_(table), line_(line), set_(set) {}

  FlagLine read() {
    FlagLine result;
    while (next_ < line_.size()) {
      const std::string& word = line_[next_++];
      if (word == "-h" || word == "--help") return {.help = true};
      if (table_.program_follows && word == "--") break;
      if (is_flag(word)) {
        word.starts_with("--") ? read_name(word.substr(2)) : read_letters(word);
      } else {
        result.operands.push_back(word);
        if (table_.program_follows) break;
      }
    }
    result.operands.insert(result.operands.end(), line_.begin() + static_cast<std::ptrdiff_t>(next_), line_.end());
    return result;
  }

 private:
  void read_name(const std::string& word) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const Flag* flag = table_.find(name);
    if (flag == nullptr) throw UsageError(table_.unknown("--" + name));
    if (equals == std::string::npos) return flag->takes_value() ? set_with(*flag, next_word(*flag)) : set_(*flag, {});
    if (!flag->takes_value())
      throw UsageError(fmt::format("--{} takes no value; it was given '{}'.", flag->name, word.substr(equals + 1)));
    set_with(*flag, word.substr(equals + 1));
  }

  // As usual: -qm is -q -m, and -t3 is -t 3.
  void read_letters(const std::string& word) {
    if (is_name_behind_one_dash(word)) return read_name(word.substr(1));
    for (size_t i = 1; i < word.size(); ++i) {
      const Flag* flag = table_.find(word[i]);
      if (flag == nullptr) throw UsageError(table_.unknown(word));
      if (flag->takes_value()) {
        const size_t value = i + 1 + (i + 1 < word.size() && word[i + 1] == '=');
        return set_with(*flag, value < word.size() ? word.substr(value) : next_word(*flag));
      }
      set_(*flag, {});
    }
  }

  // -num_processes would be -n with the value um_processes.
  bool is_name_behind_one_dash(const std::string& word) const {
    const std::string name = word.substr(1, word.find('=') - 1);
    const Flag* flag = name.size() > 1 ? table_.find(name) : nullptr;
    if (flag == nullptr) return false;
    if (flag->single_dash && name.size() + 1 == word.size()) return true;
    throw UsageError(fmt::format("There is no flag -{}; it is written with two dashes: --{}.", name, name));
  }

  const std::string& next_word(const Flag& flag) {
    if (next_ < line_.size() && (flag.value_is_options || !line_[next_].starts_with("--"))) return line_[next_++];
    const std::string found = next_ < line_.size() ? fmt::format("{} follows it", line_[next_]) : "nothing follows it";
    throw UsageError(fmt::format("--{} needs a value, but {}.", flag.name, found));
  }

  void set_with(const Flag& flag, const std::string& value) {
    std::vector<std::string> values = {value};
    // Up to the first word that is not a choice: an operand may follow.
    while (flag.kind == FlagKind::words && next_ < line_.size() && flag.has_choice(line_[next_])) {
      values.push_back(line_[next_++]);
    }
    set_(flag, values);
  }

  const FlagTable& table_;
  const std::vector<std::string>& line_;
  const SetFlag& set_;
  size_t next_ = 0;
};

}  // namespace

const Flag* FlagTable::find(const std::string& name) const {
  const std::string spelled = flag_spelling(name);
  const auto found = std::find_if(flags.begin(), flags.end(), [&](const Flag* flag) { return flag->name == spelled; });
  return found == flags.end() ? nullptr : *found;
}

const Flag* FlagTable::find(char letter) const {
  const auto found = std::find_if(flags.begin(), flags.end(), [&](const Flag* flag) { return flag->letter == letter; });
  return found == flags.end() || letter == 0 ? nullptr : *found;
}

std::string FlagTable::closest(const std::string& name) const {
  std::vector<std::string> known = {"help"};
  for (const Flag* flag : flags) known.emplace_back(flag->name);
  return closest_hint(name, known, "--");
}

FlagLine read_flags(const FlagTable& table, const std::vector<std::string>& line, const SetFlag& set) {
  return FlagReader(table, line, set).read();
}

}  // namespace accelerate::detail
