#include "command_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "checkpoint_files/memory_estimate.h"
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
      .summary = "launch a program in one or more processes",
      .description = {"Launches a program in one or more processes, each with its rank in the environment. A program is an "
                      "executable, a script with #!, or NAME.py, which python3 runs.",
                      "Settings that are not on the command line come from the config file. Everything after the "
                      "program's name is passed to the program unchanged."},
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
  const char* where = "config file to write (default: the one that `accelerate launch` reads by default)";
  return {
      {.name = "config",
       .summary = "answer questions about your setup and save a config file",
       .description = {"Asks about your training setup and saves the answers in a config file that `accelerate launch` reads.",
                       "The default config file is $HF_HOME/accelerate/default_config.yaml, or, without HF_HOME, "
                       "huggingface/accelerate/default_config.yaml in $XDG_CACHE_HOME or ~/.cache."},
       .flags = {config_file_flag(where)},
       .operands = "[default | update]",
       .operand_count = 0,
       .offer = Offer::choices,
       .choices = {"default", "update"}},
      {.name = "config default",
       .summary = "write a config file for this machine without asking",
       .description = {"Writes a config file that fits this machine. An existing file is not overwritten."},
       .flags = {config_file_flag(where),
                 {{.name = "mixed_precision", .kind = FlagKind::text, .help = "mixed-precision mode", .choices = "no fp16 bf16"},
                  &Arguments::mixed_precision}}},
      {.name = "config update",
       .summary = "update a config file to this version",
       .description = {"Reads a config file, adds the keys that newer versions introduced, and writes it back."},
       .flags = {config_file_flag("config file to update (default: the one that `accelerate launch` reads by default)")}}};
}

CommandPage test_page() {
  return {.name = "test",
          .summary = "check that this machine and its configuration work",
          .description =
              {"Launches a test program with the current configuration. It checks ranks, collectives, data sharding, random "
               "number generators, mixed precision, that distributed training matches a single process, and that a "
               "run resumes from a checkpoint. It prints each check, and in the end whether all passed or which one "
               "failed."},
          .flags = {config_file_flag("config file to test (default: the one that `accelerate launch` reads by default)")}};
}

CommandPage env_page() {
  return {
      .name = "env",
      .summary = "print the environment information for a bug report",
      .description = {"Prints versions, platform, CPUs, memory, GPUs, driver, backends, the LibTorch that accelerate was built "
                      "with, and the configuration."},
      .flags = {config_file_flag("config file to print (default: the one that `accelerate launch` reads by default)")}};
}

CommandPage inspect_page() {
  return {.name = "inspect",
          .summary = "list the contents of a weights file or a checkpoint",
          .description = {"Lists the tensors and values in a safetensors file, a torch.save file, or a folder of them such as a "
                          "checkpoint. Needs neither Python nor torch, and never runs code from a file."},
          .flags = {json_flag()},
          .operands = "FILE | FOLDER",
          .offer = Offer::files};
}

FlagPage dtypes_flag() {
  static const std::string dtypes = fmt::format("{}", fmt::join(estimated_dtypes(), " "));
  return {{.name = "dtypes",
           .kind = FlagKind::words,
           .help = "dtypes to estimate, one or more (also bf16, fp16, half, fp32, float; default: all but bfloat16)",
           .choices = dtypes.c_str(),
           .value_name = "DTYPE",
           .other_names = other_dtype_names},
          &Arguments::dtypes};
}

CommandPage estimate_memory_page() {
  return {.name = "estimate-memory",
          .summary = "estimate how much memory a model needs",
          .description =
              {"Estimates how much memory a model needs for loading and training: its largest layer, all of its weights, and "
               "training with Adam. Reads only the headers of its files. MODEL is a folder, a weights file, an index of shards, "
               "a config.json next to them, or the name of a model that was downloaded from the hub.",
               "A layer is a module without submodules, or one block of a numbered list.",
               "With --shard N also what each of N ranks needs to train it with Adam, for each sharding strategy, in float32 and "
               "in bf16 mixed precision; activations come on top."},
          .flags = {dtypes_flag(),
                    {{.name = "shard",
                      .kind = FlagKind::integer,
                      .help = "also estimate training sharded over N ranks (FSDP, ZeRO)",
                      .value_name = "N"},
                     &Arguments::shard},
                    json_flag()},
          .operands = "MODEL",
          .offer = Offer::files};
}

CommandPage merge_weights_page() {
  return {.name = "merge-weights",
          .summary = "merge sharded weights into one file",
          .description = {"Merges the weights in a folder into one file: shards with an index, or an FSDP checkpoint of type "
                          "SHARDED_STATE_DICT. OUT is a folder for model.safetensors (or pytorch_model.bin), or a file name "
                          "that ends in .safetensors (or .bin)."},
          .flags = {{{"unsafe_serialization", FlagKind::on, "write a torch file instead of safetensors"},
                     &Arguments::unsafe_serialization},
                    {{"remove_checkpoint_dir", FlagKind::on, "remove the folder once the merged file is durable"},
                     &Arguments::remove_checkpoint_dir}},
          .operands = "FOLDER OUT",
          .operand_count = 2,
          .offer = Offer::files};
}

CommandPage to_fsdp2_page() {
  return {.name = "to-fsdp2",
          .summary = "convert a config file from version 1 of FSDP to version 2",
          .description = {"Converts the fsdp_config of a config file: fsdp_sharding_strategy becomes fsdp_reshard_after_forward, "
                          "keys that version 2 does not have are left out and named, and fsdp_version is set to 2. The result is "
                          "YAML. A file that is for version 2 already is written as it is."},
          .flags = {config_file_flag("config file to convert (required)"),
                    {{"output_file", FlagKind::file, "file to write (default with --overwrite: the config file itself)"},
                     &Arguments::output_file},
                    {{"overwrite", FlagKind::on, "write the file even if it exists"}, &Arguments::overwrite}}};
}

CommandPage completion_page() {
  return {.name = "completion",
          .summary = "print a shell completion script",
          .description =
              {"For bash: add eval \"$(accelerate completion bash)\" to ~/.bashrc. For zsh: write the script to a file named "
               "_accelerate in a folder of $fpath. `make install` installs both where shells find them."},
          .operands = "bash | zsh",
          .offer = Offer::choices,
          .choices = {"bash", "zsh"}};
}

std::string blanks(size_t columns) { return std::string(columns, ' '); }

// `text` from column kHelpColumn on, after `line`.
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
  pages.push_back(to_fsdp2_page());
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
  for (const auto& flag : page.flags)
    text += explained(fmt::format("  --{}{}{}", flag.name, flag.takes_value() ? " " : "", flag.placeholder()),
                      flag.help_with_choices());
  return text;
}

}  // namespace accelerate::detail::cli
