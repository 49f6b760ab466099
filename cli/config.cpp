#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/core/error.h>
#include <accelerate/launch/machine_facts.h>
#include "core/closest_name.h"
#include "core/screen.h"
#include "launch/config_file.h"
#include "launch/config_wizard.h"
#include "launch/plain_asker.h"
#include "launch/terminal_asker.h"
#include "subcommands.h"

namespace accelerate::cli {
namespace {

/// What is given on the command line.
struct ConfigArguments {
  std::optional<std::string> config_file = {};
  std::string mixed_precision = "no";

  std::string path() const { return config_file ? *config_file : default_config_path(process_environment); }
};

struct ConfigFlag {
  const char* name;
  const char* value;
  const char* help;
};

constexpr ConfigFlag kConfigFile = {"--config_file", "FILE",
                                    "the configuration file (default: the one `accelerate launch` reads)"};
constexpr ConfigFlag kMixedPrecision = {"--mixed_precision", "PRECISION", "no, fp16 or bf16 (default: no)"};

int ask_questions(const ConfigArguments& arguments);
int write_default(const ConfigArguments& arguments);
int update(const ConfigArguments& arguments);

struct ConfigCommand {
  const char* name;
  const char* summary;
  int (*run)(const ConfigArguments& arguments);
  bool takes_precision;

  std::vector<ConfigFlag> flags() const {
    return takes_precision ? std::vector{kConfigFile, kMixedPrecision} : std::vector{kConfigFile};
  }
};

constexpr std::array kConfigCommands = {
    ConfigCommand{"", "ask how you train, and write the answers to a file", ask_questions, false},
    ConfigCommand{"default", "write a file for this machine without asking; a file that exists is left alone", write_default,
                  true},
    ConfigCommand{"update", "bring a file of an older version up to date", update, false},
};

std::unique_ptr<Asker> make_asker() {
  if (!detail::is_terminal(STDIN_FILENO) || !detail::is_terminal(STDOUT_FILENO)) {
    return std::make_unique<PlainAsker>(STDIN_FILENO, STDOUT_FILENO);
  }
  const char* no_color = std::getenv("NO_COLOR");
  return std::make_unique<TerminalAsker>(STDIN_FILENO, STDOUT_FILENO, no_color == nullptr || *no_color == '\0');
}

int ask_questions(const ConfigArguments& arguments) {
  const std::string path = arguments.path();
  check_config_target(path);  // before anybody answers twenty questions for nothing
  const Config config = ask_for_config(*make_asker(), path);
  write_config(config, path);
  std::printf("The configuration is saved in %s.\n", path.c_str());
  return 0;
}

int write_default(const ConfigArguments& arguments) {
  const std::string path = arguments.path();
  std::error_code problem;
  if (std::filesystem::exists(path, problem)) {
    std::printf("%s exists already and is left as it is. Run `accelerate config`, or name another file with --config_file.\n",
                path.c_str());
    return 0;
  }
  PortReservation port;
  const int gpus = read_machine_facts(port).gpus;
  const Config config = make_config({{"compute_environment", "LOCAL_MACHINE"},
                                     {"distributed_type", gpus > 1 ? "MULTI_GPU" : "NO"},
                                     {"mixed_precision", arguments.mixed_precision},
                                     {"num_processes", std::max(gpus, 1)},
                                     {"use_cpu", gpus == 0}},
                                    path);
  // JSON, whatever the file is called: JSON is YAML too, and Python does the same.
  write_config_text(config_json(config), path);
  std::printf("The configuration is saved in %s.\n", path.c_str());
  return 0;
}

int update(const ConfigArguments& arguments) {
  const std::string path = arguments.path();
  write_config(read_config(path), path);
  std::printf("The configuration in %s is up to date.\n", path.c_str());
  return 0;
}

void print_flags(const ConfigCommand& command) {
  std::fputs("\noptions:\n  -h, --help                    show this text\n", stdout);
  for (const ConfigFlag& flag : command.flags()) {
    std::printf("  %-29s %s\n", (std::string(flag.name) + " " + flag.value).c_str(), flag.help);
  }
}

void print_config_help(const ConfigCommand& command) {
  const std::string name = command.name;
  std::printf("usage: accelerate config %s[options]\n\n%s\n", name.empty() ? "[command] " : (name + " ").c_str(),
              command.summary);
  if (name.empty()) {
    std::fputs("\ncommands:\n", stdout);
    for (const auto& other : kConfigCommands) {
      if (*other.name != '\0') std::printf("  %-9s %s\n", other.name, other.summary);
    }
  }
  print_flags(command);
  std::printf(
      "\nThe default file is $HF_HOME/accelerate/default_config.yaml, or, without HF_HOME, "
      "huggingface/accelerate/default_config.yaml\n"
      "in $XDG_CACHE_HOME or ~/.cache. Here that is %s.\n",
      default_config_path(process_environment).c_str());
}

const ConfigCommand& find_command(const std::string& name) {
  std::vector<std::string> known;
  for (const ConfigCommand& command : kConfigCommands) {
    if (name == command.name) return command;
    if (*command.name != '\0') known.emplace_back(command.name);
  }
  throw UsageError("'" + name + "' is not a command. The closest is '" + closest_name(name, known) +
                   "'; `accelerate config --help` lists them all.");
}

/// Takes the value of a flag: `--flag=value`, or the next word.
std::string take_value(const std::string& flag, const std::optional<std::string>& attached, std::vector<std::string>& rest) {
  if (!attached && rest.empty()) throw UsageError(flag + " needs a value.");
  const std::string value = attached ? *attached : rest.front();
  if (!attached) rest.erase(rest.begin());
  if (value.empty()) throw UsageError(flag + " is empty; give it a value.");
  return value;
}

void take_flag(const ConfigCommand& command, const std::string& word, std::vector<std::string>& rest,
               ConfigArguments& arguments) {
  const size_t equals = word.find('=');
  std::string name = word.substr(0, equals);
  std::replace(name.begin() + std::min<std::ptrdiff_t>(2, static_cast<std::ptrdiff_t>(name.size())), name.end(), '-', '_');
  const auto attached = equals == std::string::npos ? std::nullopt : std::optional(word.substr(equals + 1));
  std::vector<std::string> known = {"--help"};
  for (const ConfigFlag& flag : command.flags()) known.emplace_back(flag.name);
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    throw UsageError("There is no flag " + word.substr(0, equals) + ". The closest is " + closest_name(name, known) +
                     "; `accelerate config --help` lists them all.");
  }
  const std::string value = take_value(name, attached, rest);
  if (name == kConfigFile.name) {
    arguments.config_file = value;
    return;
  }
  const std::vector<std::string> precisions = {"no", "fp16", "bf16"};
  if (std::find(precisions.begin(), precisions.end(), value) == precisions.end()) {
    throw UsageError("--mixed_precision is '" + value + "'; give no, fp16 or bf16.");
  }
  arguments.mixed_precision = value;
}

int run_command(std::vector<std::string> rest) {
  const bool named = !rest.empty() && !rest.front().starts_with('-');
  const ConfigCommand command = find_command(named ? rest.front() : "");
  if (named) rest.erase(rest.begin());
  ConfigArguments arguments;
  while (!rest.empty()) {
    const std::string word = rest.front();
    rest.erase(rest.begin());
    if (word == "-h" || word == "--help") {
      print_config_help(command);
      return 0;
    }
    if (!word.starts_with('-')) throw UsageError("'" + word + "' is one word too many; files are given with --config_file.");
    take_flag(command, word, rest, arguments);
  }
  return command.run(arguments);
}

int fail(const std::string& problem, int code) {
  std::fflush(stdout);
  std::fprintf(stderr, "accelerate config: %s\n", problem.c_str());
  return code;
}

}  // namespace

int run_config_command(std::vector<std::string> arguments) {
  try {
    return run_command(std::move(arguments));
  } catch (const UsageError& error) {
    return fail(error.what(), kUsageExitCode);
  } catch (const Interrupted& interrupted) {
    return fail("interrupted; nothing was written.", 128 + interrupted.signal());
  } catch (const Error& error) {
    return fail(error.what(), 1);
  }
}

}  // namespace accelerate::cli
