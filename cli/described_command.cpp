#include "described_command.h"

#include <cstdio>

#include <accelerate/core/error.h>
#include "command_page.h"
#include "core/escaped.h"
#include "program_name.h"
#include "subcommands.h"

namespace accelerate::detail::cli {

void tell_problem(const std::string& speaker, std::string_view problem) {
  const std::string called = program_name() + speaker.substr(std::string_view("accelerate").size());
  std::fprintf(stderr, "%s: %s\n", called.c_str(), as_called(escaped(problem)).c_str());
}

int run_described(const std::string& command, const std::vector<std::string>& given,
                  const std::function<int(const Arguments&)>& run, const std::string& more_help) {
  const CommandPage page = command_page(command);
  int exit_code = kUsageExitCode;
  try {
    const Arguments arguments = parse_arguments(page, given);
    if (arguments.help) {
      std::fputs(as_called(help_text(page) + more_help).c_str(), stdout);
      return 0;
    }
    exit_code = 1;  // from here on the command line itself is valid
    return run(arguments);
  } catch (const Error& error) {
    tell_problem("accelerate " + command, error.what());
    return exit_code;
  }
}

}  // namespace accelerate::detail::cli
