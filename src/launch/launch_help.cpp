#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "launch/launch_flags.h"

namespace accelerate::detail {
namespace {

constexpr size_t kHelpColumn = 34;
constexpr size_t kHelpWidth = 110;

// `text` wrapped at the column of explanations; the first line continues `line` if it fits.
std::string with_explanation(std::string line, const std::string& text) {
  std::string result;
  if (line.size() + 2 > kHelpColumn) {
    result = line + "\n";
    line.clear();
  }
  line.resize(kHelpColumn, ' ');
  bool first = true;
  std::istringstream words(text);
  for (std::string word; words >> word; first = false) {
    if (!first && line.size() + 1 + word.size() > kHelpWidth) {
      result += line + "\n";
      line.assign(kHelpColumn, ' ');
      first = true;
    }
    line += (first ? "" : " ") + word;
  }
  return result + line + "\n";
}

std::string explanation(const LaunchFlag& flag, bool selected) {
  std::string text = flag.help_with_choices();
  const bool told = flag.fallback == nullptr || *flag.fallback == '\0' || !flag.takes_value();
  if (!told) text += fmt::format(" (default: {})", flag.fallback);
  return selected ? text + " (selected)" : text;
}

bool contains_name(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string group_help(const FlagGroupInfo& group, const std::vector<std::string>& on_the_line) {
  std::string text = fmt::format("\n{}:\n", group.title);
  for (const LaunchFlag& flag : launch_flags()) {
    if (flag.group != group.group) continue;
    std::string line = flag.letter != 0 ? fmt::format("  -{}, --{}", flag.letter, flag.name) : fmt::format("  --{}", flag.name);
    if (const std::string value = flag.placeholder(); !value.empty()) line += " " + value;
    text += with_explanation(std::move(line), explanation(flag, contains_name(on_the_line, flag.name)));
  }
  return text;
}

bool matters(const FlagGroupInfo& group, const LaunchHelp& asked) {
  if (asked.all) return true;
  if (asked.flags.empty()) return !group.only_in_help_all;
  if (group.shown_with == nullptr && !group.only_in_help_all) return true;
  // Any flag of a section selects it, not only the one that enables the section.
  return std::any_of(asked.flags.begin(), asked.flags.end(), [&group](const std::string& name) {
    const LaunchFlag* flag = find_launch_flag(name);
    return (group.shown_with != nullptr && name == group.shown_with) || (flag != nullptr && flag->group == group.group);
  });
}

}  // namespace

std::string launch_help(const LaunchHelp& asked) {
  std::string text =
      "usage: accelerate launch [flags] program [arguments of the program]\n\n"
      "Launches a program in one or more processes, each with its rank in the environment. A program is an\n"
      "executable, a script with #!, or NAME.py, which python3 runs. Flags may be written with hyphens instead of\n"
      "underscores.\n";
  for (const FlagGroupInfo& group : launch_flag_groups()) {
    if (matters(group, asked)) text += group_help(group, asked.flags);
    if (group.group == FlagGroup::general) {
      text += with_explanation("  -h, --help", "show this help; with other flags, only the sections that apply to them");
      text += with_explanation("  --help-all", "show every flag, including those for Python programs and torchrun's aliases");
    }
  }
  if (asked.all) return text;
  if (!asked.flags.empty())
    return text + "\nOnly sections that apply to the other flags are shown; `accelerate launch --help-all` shows all.\n";
  return text +
         "\n`accelerate launch --help-all` also shows the flags of FSDP, DeepSpeed and Slurm (--submit), those that only\n"
         "affect Python programs (Megatron-LM, FP8, torch.compile, TPU) and torchrun's aliases.\n";
}

}  // namespace accelerate::detail
