#include "command_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "formats/memory_estimate.h"
#include "launch/launch_flags.h"

namespace accelerate::detail::cli {
namespace {

constexpr size_t kHelpColumn = 26;
constexpr size_t kHelpWidth = 100;

FlagPage config_file_flag(const char* help) { return {{"config_file", FlagKind::file, help}, &Arguments::config_file}; }

FlagPage json_flag() { return {{"json", FlagKind::on, "write JSON for programs instead of a table"}, &Arguments::json}; }

CommandPage launch_page() {
  CommandPage page{
      .name = "launch",
      .summary = "start a program on one or more processes",
      .description = {"Starts a program on one or more processes, and tells each of them its place. A program is an "
                      "executable, a script with #!, or NAME.py, which python3 runs.",
                      "What is not given on the line is taken from the config file. Everything behind the name of the "
                      "program is passed on to it untouched."},
      .has_help_all = true,
      .operands = "program [arguments of the program]",
      .offer = Offer::programs};
  for (const auto& group : launch_flag_groups()) {
    for (const auto& flag : launch_flags()) {
      if (flag.group != group.group) continue;
      page.flags.push_back({flag, {}, group.title});
    }
  }
  return page;
}

std::vector<CommandPage> config_pages() {
  const char* where = "the file to write (default: the one that `accelerate launch` reads by itself)";
  return {
      {.name = "config",
       .summary = "answer questions about your machines once, for every launch",
       .description = {"Asks how this machine is to be used and stores the answers in a file that `accelerate launch` reads.",
                       "That file is $HF_HOME/accelerate/default_config.yaml, or, without HF_HOME, "
                       "huggingface/accelerate/default_config.yaml in $XDG_CACHE_HOME or ~/.cache."},
       .flags = {config_file_flag(where)},
       .operands = "[default | update]",
       .operand_count = 0,
       .offer = Offer::choices,
       .choices = {"default", "update"}},
      {.name = "config default",
       .summary = "store a configuration for this machine without asking",
       .description = {"Writes a configuration that fits this machine. A file that is there already is left as it is."},
       .flags = {config_file_flag(where),
                 {{.name = "mixed_precision",
                   .kind = FlagKind::text,
                   .help = "precision of the computations",
                   .choices = "no fp16 bf16",
                   .value_name = "PRECISION"},
                  &Arguments::mixed_precision}}},
      {.name = "config update",
       .summary = "bring a stored configuration up to date",
       .description = {"Reads a configuration, fills in the keys that newer versions have, and stores it again."},
       .flags = {config_file_flag("the file to bring up to date (default: the one that `accelerate launch` reads by itself)")}}};
}

CommandPage test_page() {
  return {
      .name = "test",
      .summary = "check that this machine and its configuration work",
      .description = {"Launches a test program under the current configuration. It checks ranks, collectives between processes, "
                      "sharing out data, random numbers, precision, that training on all processes gives what a single one "
                      "gives, and that checkpoints bring a run back. It says what it checks, and ends with a line that says so, "
                      "or with the check that failed."},
      .flags = {config_file_flag("the configuration to test (default: the one that `accelerate launch` reads by itself)")}};
}

CommandPage env_page() {
  return {
      .name = "env",
      .summary = "print what a bug report should say about this machine",
      .description = {"Prints versions, platform, processors, memory, GPUs, driver, backends, the LibTorch that this was built "
                      "with, and the configuration."},
      .flags = {config_file_flag("the configuration to print (default: the one that `accelerate launch` reads by itself)")}};
}

CommandPage inspect_page() {
  return {.name = "inspect",
          .summary = "tell what a file of weights, or a checkpoint, holds",
          .description = {"Tells what a file of weights or states, or a folder of them, holds: safetensors files, files of "
                          "torch.save, checkpoints. Needs neither Python nor torch, and runs nothing of what it reads."},
          .flags = {json_flag()},
          .operands = "FILE | FOLDER",
          .offer = Offer::files};
}

FlagPage dtypes_flag() {
  static const std::string dtypes = fmt::format("{}", fmt::join(estimated_dtypes(), " "));
  return {{.name = "dtypes",
           .kind = FlagKind::words,
           .help = "those to tell about, one or more (also bf16, fp16, half, fp32, float); by default all but bfloat16",
           .choices = dtypes.c_str(),
           .value_name = "DTYPE",
           .other_names = other_dtype_names},
          &Arguments::dtypes};
}

CommandPage estimate_memory_page() {
  return {.name = "estimate-memory",
          .summary = "tell how much memory a model needs",
          .description =
              {"Tells how much memory a model needs to be loaded and to be trained: its largest layer, all of its weights, and "
               "training with Adam. Reads the headers of its files and nothing else: a folder, a file of weights, the index "
               "of shards, a config.json beside them, or the name of a model that was downloaded from the hub.",
               "A layer is a module without modules in it, or one block of a numbered list."},
          .flags = {dtypes_flag(), json_flag()},
          .operands = "MODEL",
          .offer = Offer::files};
}

CommandPage merge_weights_page() {
  return {.name = "merge-weights",
          .summary = "make one file of a folder of shards",
          .description = {"Makes one file of the weights in a folder: shards with an index, or what FSDP saved as "
                          "SHARDED_STATE_DICT. OUT is a folder for model.safetensors (or pytorch_model.bin), or a name that "
                          "ends so."},
          .flags = {{{"unsafe_serialization", FlagKind::on, "write a torch file instead of safetensors"},
                     &Arguments::unsafe_serialization},
                    {{"remove_checkpoint_dir", FlagKind::on, "remove the folder once the new file is durable"},
                     &Arguments::remove_checkpoint_dir}},
          .operands = "FOLDER OUT",
          .operand_count = 2,
          .offer = Offer::files};
}

CommandPage completion_page() {
  return {.name = "completion",
          .summary = "print a script that lets a shell complete commands and flags",
          .description =
              {"For bash: eval \"$(accelerate completion bash)\", in ~/.bashrc to have it always. For zsh: write the script to "
               "a file named _accelerate in a folder of $fpath. An installed tree has both where shells look by "
               "themselves."},
          .operands = "bash | zsh",
          .offer = Offer::choices,
          .choices = {"bash", "zsh"}};
}

std::string blanks(size_t columns) { return std::string(columns, ' '); }

// `text` from column kHelpColumn on, behind `line`.
std::string explained(std::string line, const std::string& text) {
  line += line.size() + 2 > kHelpColumn ? "\n" + blanks(kHelpColumn) : blanks(kHelpColumn - line.size());
  size_t column = kHelpColumn;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (column > kHelpColumn && column + 1 + word.size() > kHelpWidth) {
      line += "\n" + blanks(kHelpColumn);
      column = kHelpColumn;
    }
    if (column > kHelpColumn) line += " ";
    line += word;
    column += 1 + word.size();
  }
  return line + "\n";
}

std::string folded(const std::string& text) {
  std::string lines;
  size_t column = 0;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (column > 0) lines += column + 1 + word.size() > kHelpWidth ? "\n" : " ";
    column = column + 1 + word.size() > kHelpWidth ? word.size() : column + 1 + word.size();
    lines += word;
  }
  return lines + "\n";
}

}  // namespace

std::string FlagPage::value() const {
  if (!takes_value()) return "";
  if (value_name != nullptr) return value_name;
  switch (kind) {
    case FlagKind::integer:
    case FlagKind::number:
      return "NUMBER";
    case FlagKind::file:
      return "FILE";
    case FlagKind::folder:
      return "FOLDER";
    default:
      return "VALUE";
  }
}

Offer FlagPage::offer() const {
  if (kind == FlagKind::file) return Offer::files;
  if (kind == FlagKind::folder) return Offer::folders;
  return offered().empty() ? Offer::nothing : Offer::choices;
}

std::vector<std::string> FlagPage::offered() const {
  const bool yes_or_no = kind == FlagKind::truth || kind == FlagKind::boolean || kind == FlagKind::bit;
  return yes_or_no && choices == nullptr ? std::vector<std::string>{"true", "false"} : choice_list();
}

std::vector<CommandPage> command_pages() {
  std::vector<CommandPage> pages = config_pages();
  pages.push_back(launch_page());
  pages.push_back(test_page());
  pages.push_back(env_page());
  pages.push_back(inspect_page());
  pages.push_back(merge_weights_page());
  pages.push_back(estimate_memory_page());
  pages.push_back(completion_page());
  return pages;
}

CommandPage command_page(const std::string& name) {
  for (auto& page : command_pages()) {
    if (page.name == name) return page;
  }
  throw std::logic_error("there is no page of the command " + name);
}

std::string help_text(const CommandPage& page) {
  std::string text = "usage: accelerate " + page.name + (page.flags.empty() ? "" : " [flags]");
  text += (page.operands.empty() ? "" : " " + page.operands) + "\n";
  for (const auto& paragraph : page.description) text += "\n" + folded(paragraph);
  text += "\nflags:\n" + explained("  -h, --help", "show this text");
  for (const auto& flag : page.flags) {
    const std::string choices = fmt::format("{}", fmt::join(flag.choice_list(), ", "));
    text += explained(fmt::format("  --{}{}{}", flag.name, flag.takes_value() ? " " : "", flag.value()),
                      flag.help + (choices.empty() ? "" : ": " + choices));
  }
  return text;
}

}  // namespace accelerate::detail::cli
