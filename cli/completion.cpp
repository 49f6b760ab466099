#include <cstdio>

#include "described_command.h"
#include "shell_completion.h"
#include "subcommands.h"

namespace accelerate::detail::cli {

int run_completion_command(std::vector<std::string> arguments) {
  return run_described("completion", arguments, [](const Arguments& given) {
    const bool for_bash = given.operands.front() == "bash";
    const std::string script = for_bash ? bash_completion(command_pages()) : zsh_completion(command_pages());
    return std::fputs(script.c_str(), stdout) < 0;
  });
}

}  // namespace accelerate::detail::cli
