#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <accelerate/core/version.h>
#include "command_page.h"
#include "core/closest_name.h"
#include "program_name.h"
#include "subcommands.h"

namespace accelerate::detail::cli {
namespace {

struct Subcommand {
  const char* name;
  int (*run)(std::vector<std::string> arguments);
};

constexpr std::array kSubcommands = {
    Subcommand{"config", run_config_command},
    Subcommand{"launch", run_launch_command},
    Subcommand{"test", run_test_command},
    Subcommand{"env", run_env_command},
    Subcommand{"inspect", run_inspect_command},
    Subcommand{"merge-weights", run_merge_command},
    Subcommand{"estimate-memory", run_estimate_command},
    Subcommand{"to-fsdp2", run_to_fsdp2_command},
    Subcommand{"completion", run_completion_command},
    Subcommand{"manual", run_manual_command},
};

// The commands of one word, which --help lists.
std::vector<CommandPage> listed_commands() {
  std::vector<CommandPage> listed;
  for (auto& page : command_pages()) {
    if (page.name.find(' ') == std::string::npos) listed.push_back(std::move(page));
  }
  return listed;
}

void print_help(FILE* out) {
  std::fputs(as_called("usage: accelerate <command> [arguments]\n\ncommands:\n").c_str(), out);
  for (const auto& page : listed_commands()) std::fprintf(out, "  %-16s %s\n", page.name.c_str(), page.summary.c_str());
  std::fputs(as_called("\noptions:\n  -h, --help     show this text\n  --version      show the version\n\n"
                       "`accelerate <command> --help` explains a command.\n")
                 .c_str(),
             out);
}

int refuse_command(const std::string& name) {
  std::vector<std::string> known = {"--help", "--version"};
  for (const auto& page : listed_commands()) known.push_back(page.name);
  tell_problem("accelerate",
               "'" + name + "' is not a command" + closest_hint(name, known, "'", "'") + "; `accelerate --help` lists them all.");
  return kUsageExitCode;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    print_help(stdout);
    return 1;  // as Python's command line does
  }
  const std::string& name = arguments.front();
  if (name == "--version") return std::printf("accelerate %s (C++)\n", version()) < 0;
  if (name == "--help" || name == "-h") {
    print_help(stdout);
    return 0;
  }
  for (const auto& command : kSubcommands) {
    if (name == command.name) return command.run({arguments.begin() + 1, arguments.end()});
  }
  return refuse_command(name);
}

// "accelerate-launch" is "accelerate launch", as Python installs it; "accelerate-cpp" is "accelerate".
std::vector<std::string> arguments_of(int argc, char** argv) {
  std::vector<std::string> arguments(argv + (argc > 0), argv + argc);
  const std::string name = argc > 0 ? argv[0] : "";
  const std::string own = name.substr(name.rfind('/') + 1), prefix = "accelerate-";
  if (own.starts_with(prefix) && own != kNameBesidePython) arguments.insert(arguments.begin(), own.substr(prefix.size()));
  return arguments;
}

// If stdin, stdout or stderr is closed, the next file this program opens would take its descriptor.
void open_missing_streams() {
  int opened = 0;
  while (opened >= 0 && opened <= STDERR_FILENO) opened = ::open("/dev/null", O_RDWR);
  if (opened >= 0) ::close(opened);
}

}  // namespace
}  // namespace accelerate::detail::cli

int main(int argc, char** argv) {
  accelerate::detail::cli::open_missing_streams();
  try {
    return accelerate::detail::cli::run(accelerate::detail::cli::arguments_of(argc, argv));
  } catch (const std::exception& error) {
    accelerate::detail::cli::tell_problem("accelerate", error.what());
    return 1;
  }
}
