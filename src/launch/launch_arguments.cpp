#include "launch/launch_arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include <accelerate/core/error.h>
#include <accelerate/core/launch_environment.h>
#include "core/closest_name.h"
#include "launch/launch_flags.h"
#include "launch/python_text.h"

namespace accelerate {
namespace {

using Json = nlohmann::json;

template <typename Number>
std::optional<Number> number_in(const std::string& text) {
  Number number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

[[noreturn]] void refuse_value(const LaunchFlag& flag, const std::string& text, const std::string& wanted) {
  throw UsageError(fmt::format("--{} is '{}'; {}.", flag.name, text, wanted));
}

bool truth_in(const LaunchFlag& flag, const std::string& text) {
  try {
    return parse_flag(text, flag.name);
  } catch (const ConfigError&) {
    refuse_value(flag, text, "give true or false");
  }
}

Json truths_in(const LaunchFlag& flag, const std::string& text) {
  Json truths = Json::array();
  try {
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      truths.push_back(parse_flag(text.substr(begin, end - begin), flag.name));
      begin = end + 1;
    }
  } catch (const ConfigError&) {
    truths.clear();
  }
  if (truths.size() != 3) refuse_value(flag, text, "give three of true and false, separated by commas");
  return truths;
}

Json checked_text(const LaunchFlag& flag, const std::string& text) {
  const auto choices = flag.choice_list();
  if (choices.empty() || std::find(choices.begin(), choices.end(), text) != choices.end()) return text;
  const auto last = choices.end() - 1;
  const std::string wanted = choices.size() == 1 ? fmt::format("it can only be {}", choices.front())
                                                 : fmt::format("choose {} or {}", fmt::join(choices.begin(), last, ", "), *last);
  refuse_value(flag, text, wanted);
}

Json value_in(const LaunchFlag& flag, const std::string& text) {
  switch (flag.kind) {
    case FlagKind::integer: {
      if (const auto number = number_in<int>(text)) return *number;
      refuse_value(flag, text, number_in<double>(text) ? "give a whole number that is not too large" : "give a whole number");
    }
    case FlagKind::number: {
      if (const auto number = number_in<double>(text); number && std::isfinite(*number)) return *number;
      refuse_value(flag, text, "give a number");
    }
    case FlagKind::truth:
      truth_in(flag, text);
      return text;
    case FlagKind::on:
    case FlagKind::off:
    case FlagKind::boolean:
      return truth_in(flag, text);
    case FlagKind::bit:
      return truth_in(flag, text) ? 1 : 0;
    case FlagKind::booleans:
      return truths_in(flag, text);
    default:
      return checked_text(flag, text);
  }
}

/// Reads a line word by word.
class LineReader {
 public:
  explicit LineReader(const std::vector<std::string>& line) : line_(line) {
    for (const LaunchFlag& flag : launch_flags()) {
      result_.values[flag.destination()] = flag.fallback != nullptr ? value_in(flag, flag.fallback) : Json();
    }
  }

  LaunchArguments read() {
    while (next_ < line_.size() && line_[next_].size() > 1 && line_[next_].front() == '-') {
      const std::string& word = line_[next_++];
      if (word == "--") break;
      word.starts_with("--") ? read_name(word) : read_letters(word);
    }
    result_.command.assign(line_.begin() + static_cast<std::ptrdiff_t>(next_), line_.end());
    return std::move(result_);
  }

 private:
  void read_name(const std::string& word) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(2, equals - 2);
    const LaunchFlag* flag = find_launch_flag(name);
    if (flag == nullptr) refuse_name("--" + name);
    if (equals == std::string::npos) return flag->takes_value() ? set(*flag, next_word(*flag)) : set(*flag);
    if (!flag->takes_value())
      throw UsageError(fmt::format("--{} takes no value; it was given '{}'.", flag->name, word.substr(equals + 1)));
    set(*flag, word.substr(equals + 1));
  }

  // As others have it: -qm is -q -m, and -t3 is -t 3.
  void read_letters(const std::string& word) {
    for (size_t i = 1; i < word.size(); ++i) {
      const LaunchFlag* flag = find_launch_flag(word[i]);
      if (flag == nullptr) refuse_name(word);
      if (flag->takes_value()) {
        const size_t value = i + 1 + (i + 1 < word.size() && word[i + 1] == '=');
        return set(*flag, value < word.size() ? word.substr(value) : next_word(*flag));
      }
      set(*flag);
    }
  }

  const std::string& next_word(const LaunchFlag& flag) {
    if (next_ < line_.size() && !line_[next_].starts_with("--")) return line_[next_++];
    const std::string found = next_ < line_.size() ? fmt::format("{} follows it", line_[next_]) : "nothing follows it";
    throw UsageError(fmt::format("--{} needs a value, and {}.", flag.name, found));
  }

  void set(const LaunchFlag& flag) {
    result_.values[flag.destination()] = flag.kind == FlagKind::on;
    result_.given.insert(flag.destination());
  }

  void set(const LaunchFlag& flag, const std::string& text) {
    Json& value = result_.values[flag.destination()];
    if (flag.kind != FlagKind::texts) {
      value = value_in(flag, text);
    } else {
      value.push_back(text);  // null becomes a list
    }
    result_.given.insert(flag.destination());
  }

  [[noreturn]] static void refuse_name(const std::string& given) {
    std::vector<std::string> known = {"--help"};
    for (const LaunchFlag& flag : launch_flags()) known.push_back(fmt::format("--{}", flag.name));
    std::string spelled = given;
    std::replace(spelled.begin() + std::min<std::ptrdiff_t>(2, static_cast<std::ptrdiff_t>(spelled.size())), spelled.end(), '-',
                 '_');
    throw UsageError(
        fmt::format("There is no flag {}. The closest is {}; `accelerate launch --help` lists them all. Flags of the "
                    "program come after its name.",
                    given, closest_name(spelled, known)));
  }

  const std::vector<std::string>& line_;
  size_t next_ = 0;
  LaunchArguments result_ = {};
};

}  // namespace

bool LaunchArguments::is_on(const std::string& name) const {
  const auto found = values.find(name);
  return found != values.end() && found->is_boolean() && found->get<bool>();
}

std::string LaunchArguments::text(const std::string& name) const {
  const auto found = values.find(name);
  return python_str(found == values.end() ? Json() : *found);
}

LaunchArguments parse_launch_arguments(const std::vector<std::string>& line) { return LineReader(line).read(); }

bool asks_for_help(const std::vector<std::string>& line, std::vector<std::string>& flags) {
  bool help = false;
  for (size_t i = 0; i < line.size() && line[i].size() > 1 && line[i].front() == '-' && line[i] != "--"; ++i) {
    help = help || line[i] == "-h" || line[i] == "--help";
    const LaunchFlag* flag = line[i].starts_with("--") ? find_launch_flag(line[i].substr(2, line[i].find('=') - 2)) : nullptr;
    if (flag == nullptr) continue;
    flags.emplace_back(flag->name);
    if (flag->takes_value() && line[i].find('=') == std::string::npos) ++i;
  }
  return help;
}

std::string python_str(const nlohmann::json& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return python_number(value.get<double>());
  return value.dump();
}

}  // namespace accelerate
