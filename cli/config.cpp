#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/core/error.h>
#include <accelerate/launch/machine_facts.h>
#include "config/config_file.h"
#include "config/config_wizard.h"
#include "console/plain_asker.h"
#include "console/screen.h"
#include "console/terminal_asker.h"
#include "core/escaped.h"
#include "described_command.h"
#include "subcommands.h"

namespace accelerate::detail::cli {
namespace {

std::string path_of(const Arguments& given) { return given.config_file.value_or(default_config_path(process_environment)); }

std::unique_ptr<Asker> make_asker() {
  if (!detail::is_terminal(STDIN_FILENO) || !detail::is_terminal(STDOUT_FILENO)) {
    return std::make_unique<PlainAsker>(STDIN_FILENO, STDOUT_FILENO);
  }
  const char* no_color = std::getenv("NO_COLOR");
  return std::make_unique<TerminalAsker>(STDIN_FILENO, STDOUT_FILENO, no_color == nullptr || *no_color == '\0');
}

int ask_questions(const Arguments& given) {
  const std::string path = path_of(given);
  check_config_target(path);  // before the user answers twenty questions in vain
  const Config config = ask_for_config(*make_asker(), path);
  write_config(config, path);
  std::printf("The configuration is saved in %s.\n", escaped(path).c_str());
  return 0;
}

int write_default(const Arguments& given) {
  const std::string path = path_of(given);
  std::error_code problem;
  if (std::filesystem::exists(path, problem)) {
    std::printf(
        "%s already exists and was not overwritten. Run `accelerate config`, or choose another file with --config_file.\n",
        escaped(path).c_str());
    return 0;
  }
  PortReservation port;
  const int gpus = read_machine_facts(port).gpus;
  const Config config = make_config({{"compute_environment", "LOCAL_MACHINE"},
                                     {"distributed_type", gpus > 1 ? "MULTI_GPU" : "NO"},
                                     {"mixed_precision", given.mixed_precision.value_or("no")},
                                     {"num_processes", std::max(gpus, 1)},
                                     {"use_cpu", gpus == 0}},
                                    path);
  // JSON, whatever the file is called: JSON is YAML too, and Python does the same.
  write_config_text(config_json(config), path);
  std::printf("The configuration is saved in %s.\n", escaped(path).c_str());
  return 0;
}

int update(const Arguments& given) {
  const std::string path = path_of(given);
  write_config(read_config(path), path);
  std::printf("The configuration in %s is up to date.\n", escaped(path).c_str());
  return 0;
}

struct ConfigCommand {
  std::string_view name;
  int (*run)(const Arguments& given);
};
constexpr std::array kConfigCommands = {ConfigCommand{"config", ask_questions}, ConfigCommand{"config default", write_default},
                                        ConfigCommand{"config update", update}};

}  // namespace

int run_config_command(std::vector<std::string> arguments) {
  std::string name = "config";
  // An unknown word stays and is rejected as an argument of `config`.
  for (const auto& command : kConfigCommands) {
    if (!arguments.empty() && command.name == "config " + arguments.front()) name = command.name;
  }
  if (name != "config") arguments.erase(arguments.begin());
  const auto* command =
      std::find_if(kConfigCommands.begin(), kConfigCommands.end(), [&](const auto& c) { return c.name == name; });
  const auto run = [&](const Arguments& given) {
    try {
      return command->run(given);
    } catch (const Interrupted& interrupted) {
      std::fflush(stdout);
      std::fprintf(stderr, "accelerate config: interrupted; nothing was written.\n");
      return 128 + interrupted.signal();
    }
  };
  return run_described(name, arguments, run, "\nThe default file is " + default_config_path(process_environment) + ".\n");
}

}  // namespace accelerate::detail::cli
