#include "launch/launch_arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include <accelerate/core/error.h>
#include <accelerate/core/launch_environment.h>
#include "config/python_text.h"
#include "core/closest_name.h"
#include "launch/launch_flags.h"

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
      const std::string sets = flag.destination();
      const bool a_range = (sets == "num_machines" || sets == "num_processes") && text.find(':') != std::string::npos;
      refuse_value(flag, text,
                   number_in<double>(text) ? "give a whole number that is not too large"
                   : a_range               ? "give one whole number: machines cannot join or leave a running launch"
                                           : "give a whole number");
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

/// A flag that other launchers have.
struct NameElsewhere {
  const char* name;
  /// What to do here.
  const char* here;
};
constexpr std::array kNamesElsewhere = {
    NameElsewhere{"rdzv_endpoint", "the ranks meet at --main_process_ip and --main_process_port"},
    NameElsewhere{"rdzv_id", "set ACCELERATE_RUN_ID on every machine instead, or leave it out"},
    NameElsewhere{"redirects", "--log_dir or --tee write what ranks print to files"},
    NameElsewhere{"r", "--log_dir or --tee write what ranks print to files"},
    NameElsewhere{"nproc", "--num_processes has that meaning"},
    NameElsewhere{"nprocs", "--num_processes has that meaning"},
    NameElsewhere{"ntasks", "--num_processes has that meaning"},
    NameElsewhere{"world_size", "--num_processes has that meaning"},
    NameElsewhere{"num_gpus", "--num_processes has that meaning, a process for each GPU; --gpu_ids chooses them"},
    NameElsewhere{"num_nodes", "--num_machines has that meaning"},
    NameElsewhere{"nodes", "--num_machines has that meaning"},
    NameElsewhere{"hostfile", "--mpirun_hostfile has that meaning"},
};

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
      if (word == "-np") {  // as mpirun has it
        read_name("--np");
      } else {
        word.starts_with("--") ? read_name(word) : read_letters(word);
      }
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
    refuse_single_dash(word);
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

  // -num_processes would be -n with the value um_processes.
  static void refuse_single_dash(const std::string& word) {
    const std::string name = word.substr(1, word.find('=') - 1);
    const LaunchFlag* flag = name.size() > 1 ? find_launch_flag(name) : nullptr;
    if (flag != nullptr) throw UsageError(fmt::format("There is no flag -{}; it is written with two dashes: --{}.", name, name));
  }

  [[noreturn]] static void refuse_name(const std::string& given) {
    std::string name = given.substr(std::min(given.find_first_not_of('-'), given.size()));
    std::replace(name.begin(), name.end(), '-', '_');
    for (const NameElsewhere& elsewhere : kNamesElsewhere) {
      if (name == elsewhere.name) throw UsageError(fmt::format("There is no flag {}: {}.", given, elsewhere.here));
    }
    std::vector<std::string> known = {"help"};
    for (const LaunchFlag& flag : launch_flags()) known.emplace_back(flag.name);
    throw UsageError(fmt::format(
        "There is no flag {}{}; `accelerate launch --help-all` lists them all. Flags of the program come after its name.", given,
        closest_hint(name, known, "--")));
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

std::optional<LaunchHelp> asked_help(const std::vector<std::string>& line) {
  LaunchHelp asked;
  bool help = false;
  for (size_t i = 0; i < line.size() && line[i].size() > 1 && line[i].front() == '-' && line[i] != "--"; ++i) {
    const std::string& word = line[i];
    asked.all = asked.all || word == "--help-all" || word == "--help_all";
    help = help || asked.all || word == "-h" || word == "--help";
    const LaunchFlag* flag = word.starts_with("--") ? find_launch_flag(word.substr(2, word.find('=') - 2))
                             : word == "-np"        ? find_launch_flag("np")
                                                    : find_launch_flag(word.back());
    if (flag == nullptr) continue;
    asked.flags.emplace_back(flag->name);
    if (flag->takes_value() && word.find('=') == std::string::npos) ++i;
  }
  return help ? std::optional(asked) : std::nullopt;
}

std::string python_str(const nlohmann::json& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return python_number(value.get<double>());
  return value.dump();
}

}  // namespace accelerate
