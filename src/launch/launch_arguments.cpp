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

namespace accelerate::detail {
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
  if (truths.size() != 3) refuse_value(flag, text, "give three booleans, separated by commas");
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
      const bool a_range = flag.member == SettingMember(&LaunchSettings::num_processes) && text.find(':') != std::string::npos;
      refuse_value(flag, text,
                   number_in<double>(text) ? "give a 32-bit integer"
                   : a_range               ? "give a single integer; --num_machines may be MIN:MAX"
                                           : "give an integer");
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

/// "2:4": a run of two machines that may grow to four.
void take_machines(LaunchSettings& settings, const LaunchFlag& flag, const std::string& text) {
  const size_t colon = text.find(':');
  settings.min_machines.reset();
  settings.num_machines = value_in(flag, text.substr(colon == text.npos ? 0 : colon + 1)).get<int>();
  if (colon == text.npos) return;
  settings.min_machines = value_in(flag, text.substr(0, colon)).get<int>();
  if (*settings.min_machines < 1) refuse_value(flag, text, "at least 1 machine is needed");
}

/// A flag of another launcher.
struct NameElsewhere {
  const char* name;
  /// What to do here.
  const char* here;
};
constexpr std::array kNamesElsewhere = {
    NameElsewhere{"include", "use --deepspeed_inclusion_filter"},
    NameElsewhere{"exclude", "use --deepspeed_exclusion_filter"},
    NameElsewhere{"redirects", "use --log_dir or --tee to write the output of ranks to files"},
    NameElsewhere{"r", "use --log_dir or --tee to write the output of ranks to files"},
    NameElsewhere{"nproc", "use --num_processes"},
    NameElsewhere{"nprocs", "use --num_processes"},
    NameElsewhere{"ntasks", "use --num_processes"},
    NameElsewhere{"world_size", "use --num_processes"},
    NameElsewhere{"num_gpus", "use --num_processes (one process per GPU), and --gpu_ids to choose GPUs"},
    NameElsewhere{"num_nodes", "use --num_machines"},
    NameElsewhere{"nodes", "use --num_machines"},
    NameElsewhere{"hostfile", "use --deepspeed_hostfile, which starts the program by ssh or pdsh, or --mpirun_hostfile"},
};

std::string unknown_flag(const FlagTable& table, const std::string& given) {
  const std::string name = flag_spelling(given.substr(std::min(given.find_first_not_of('-'), given.size())));
  for (const NameElsewhere& elsewhere : kNamesElsewhere) {
    if (name == elsewhere.name) return fmt::format("There is no flag {}: {}.", given, elsewhere.here);
  }
  return fmt::format(
      "There is no flag {}{}; `accelerate launch --help-all` lists them all. The program's own flags go after its "
      "name.",
      given, table.closest(name));
}

}  // namespace

LaunchArguments parse_launch_arguments(const std::vector<std::string>& line) {
  LaunchArguments arguments;
  for (const LaunchFlag& flag : launch_flags()) {
    if (flag.fallback != nullptr) set_value(arguments.settings, flag, value_in(flag, flag.fallback));
  }
  FlagTable table = launch_flag_table();
  table.unknown = [&table](const std::string& given) { return unknown_flag(table, given); };
  const auto set = [&arguments](const Flag& given, const std::vector<std::string>& values) {
    const auto& flag = static_cast<const LaunchFlag&>(given);
    if (flag.member == SettingMember(&LaunchSettings::num_machines)) {
      take_machines(arguments.settings, flag, values.front());
    } else {
      set_value(arguments.settings, flag, values.empty() ? Json(flag.kind == FlagKind::on) : value_in(flag, values.front()));
    }
    arguments.given.insert(flag.key());
  };
  arguments.settings.command = read_flags(table, line, set).operands;
  return arguments;
}

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

}  // namespace accelerate::detail
