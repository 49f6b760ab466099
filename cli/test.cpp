#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include <accelerate/core/error.h>
#include "build_facts.h"
#include "config/config_file.h"
#include "core/escaped.h"
#include "described_command.h"
#include "subcommands.h"

namespace accelerate::detail::cli {
namespace {

constexpr const char* kSuccess = "Test is a success! You are ready for your distributed training!";

std::string find_test_program() {
  const auto folder = std::filesystem::path(own_executable()).parent_path() / build_facts().helper_folder;
  const std::string program = (folder / "self_test").lexically_normal();
  if (::access(program.c_str(), X_OK) == 0) return program;
  if (build_facts().torch_version.empty()) {
    throw Error(
        "This command line was built without LibTorch, so it has no test program. Build it with ACCELERATE_WITH_TORCH=ON.");
  }
  const bool exists = ::access(program.c_str(), F_OK) == 0;
  throw Error("The test program " + program + (exists ? " is not executable" : " does not exist") +
              ". Build the target accelerate_self_test, or install accelerate again.");
}

void say_configuration(const std::optional<std::string>& config_file) {
  const std::string stored = default_config_path(process_environment);
  std::error_code ignored;
  if (config_file) {
    std::printf("Configuration: %s\n", escaped(*config_file).c_str());
  } else if (std::filesystem::exists(stored, ignored)) {
    std::printf("Configuration: %s\n", escaped(stored).c_str());
  } else {
    std::printf("Configuration: defaults for this machine (no config file; `accelerate config` writes one)\n");
  }
  std::fflush(stdout);  // before the processes write
}

}  // namespace

int run_test_command(std::vector<std::string> arguments) {
  return run_described("test", arguments, [](const Arguments& given) {
    const std::string program = find_test_program();
    const auto& config_file = given.config_file;
    say_configuration(config_file);
    std::vector<std::string> launch;
    if (config_file) launch = {"--config_file", *config_file};
    launch.push_back(program);
    const int exit_code = run_launch_command(launch);
    if (exit_code == 0) {
      std::puts(kSuccess);
    } else {
      std::fprintf(stderr, "accelerate test: failed with exit code %d; see the messages above.\n", exit_code);
    }
    return exit_code;
  });
}

}  // namespace accelerate::detail::cli
