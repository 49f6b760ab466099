#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <accelerate/core/version.h>
#include "core/closest_name.h"
#include "subcommands.h"

namespace accelerate::cli {
namespace {

struct Subcommand {
  const char* name;
  const char* summary;
  int (*run)(std::vector<std::string> arguments);
};

constexpr std::array kSubcommands = {
    Subcommand{"launch", "start a program on one or more processes", run_launch_command},
};

void print_help(FILE* out) {
  std::fputs("usage: accelerate <command> [arguments]\n\ncommands:\n", out);
  for (const auto& command : kSubcommands) std::fprintf(out, "  %-12s %s\n", command.name, command.summary);
  std::fputs(
      "\noptions:\n  -h, --help   show this text\n  --version    show the version\n\n"
      "`accelerate <command> --help` explains a command.\n",
      out);
}

int refuse_command(const std::string& name) {
  std::vector<std::string> known = {"--help", "--version"};
  for (const auto& command : kSubcommands) known.emplace_back(command.name);
  std::fprintf(stderr, "accelerate: '%s' is not a command. The closest is '%s'; `accelerate --help` lists them all.\n",
               name.c_str(), closest_name(name, known).c_str());
  return kUsageExitCode;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    print_help(stdout);
    return 1;  // as Python's command line has it
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

// A program that was started without one of stdin, stdout and stderr would get some other file of its own in that place.
void open_missing_streams() {
  int opened = 0;
  while (opened >= 0 && opened <= STDERR_FILENO) opened = ::open("/dev/null", O_RDWR);
  if (opened >= 0) ::close(opened);
}

}  // namespace
}  // namespace accelerate::cli

int main(int argc, char** argv) {
  accelerate::cli::open_missing_streams();
  try {
    return accelerate::cli::run({argv + (argc > 0), argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "accelerate: %s\n", error.what());
    return 1;
  }
}
