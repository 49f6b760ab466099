#include "command_page.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "formats/memory_estimate.h"
#include "launch/launch_flags.h"

namespace accelerate::cli {
namespace {

constexpr size_t kHelpColumn = 26;
constexpr size_t kHelpWidth = 100;

FlagPage config_file_flag(const std::string& help) {
  return {.name = "config_file", .help = help, .value = "FILE", .offer = Offer::files};
}

FlagPage page_of(const LaunchFlag& flag) {
  FlagPage page{.name = flag.name, .help = flag.help, .choices = flag.choice_list(), .letter = flag.letter};
  if (flag.takes_value()) page.value = "VALUE";
  if (flag.kind == FlagKind::integer || flag.kind == FlagKind::number) page.value = "NUMBER";
  if (flag.kind == FlagKind::file) page.value = "FILE";
  if (flag.kind == FlagKind::folder) page.value = "FOLDER";
  const bool yes_or_no = flag.kind == FlagKind::truth || flag.kind == FlagKind::boolean || flag.kind == FlagKind::bit;
  if (yes_or_no && page.choices.empty()) page.choices = {"true", "false"};
  if (!page.choices.empty()) page.offer = Offer::choices;
  if (flag.kind == FlagKind::file) page.offer = Offer::files;
  if (flag.kind == FlagKind::folder) page.offer = Offer::folders;
  return page;
}

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
      page.flags.push_back(page_of(flag));
      page.flags.back().group = group.title;
    }
  }
  return page;
}

std::vector<CommandPage> config_pages() {
  const std::string where = "the file to write (default: the one that `accelerate launch` reads by itself)";
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
                 {.name = "mixed_precision",
                  .help = "precision of the computations",
                  .value = "PRECISION",
                  .offer = Offer::choices,
                  .choices = {"no", "fp16", "bf16"}}}},
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
          .flags = {{.name = "json", .help = "write JSON for programs instead of a table"}},
          .operands = "FILE | FOLDER",
          .offer = Offer::files};
}

CommandPage estimate_memory_page() {
  return {.name = "estimate-memory",
          .summary = "tell how much memory a model needs",
          .description =
              {"Tells how much memory a model needs to be loaded and to be trained: its largest layer, all of its weights, and "
               "training with Adam. Reads the headers of its files and nothing else: a folder, a file of weights, the index "
               "of shards, a config.json beside them, or the name of a model that was downloaded from the hub.",
               "A layer is a module without modules in it, or one block of a numbered list."},
          .flags = {{.name = "dtypes",
                     .help = "those to tell about, one or more (also bf16, fp16, half, fp32, float); by default all but bfloat16",
                     .value = "DTYPE",
                     .offer = Offer::choices,
                     .choices = estimated_dtypes(),
                     .other_names = other_dtype_names(),
                     .repeats = true},
                    {.name = "json", .help = "write JSON for programs instead of a table"}},
          .operands = "MODEL",
          .offer = Offer::files};
}

CommandPage merge_weights_page() {
  return {.name = "merge-weights",
          .summary = "make one file of a folder of shards",
          .description = {"Makes one file of the weights in a folder: shards with an index, or what FSDP saved as "
                          "SHARDED_STATE_DICT. OUT is a folder for model.safetensors (or pytorch_model.bin), or a name that "
                          "ends so."},
          .flags = {{.name = "unsafe_serialization", .help = "write a torch file instead of safetensors"},
                    {.name = "remove_checkpoint_dir", .help = "remove the folder once the new file is durable"}},
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

std::string FlagPage::choice_of(const std::string& word) const {
  const auto found = other_names.find(word);
  return found == other_names.end() ? word : found->second;
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
    std::string choices;
    for (const auto& choice : flag.choices) choices += (choices.empty() ? "" : ", ") + choice;
    text += explained("  --" + flag.name + (flag.value.empty() ? "" : " " + flag.value),
                      flag.help + (choices.empty() ? "" : ": " + choices));
  }
  return text;
}

}  // namespace accelerate::cli
