#include <cstdio>
#include <filesystem>

#include <accelerate/core/error.h>
#include "config/config_file.h"
#include "config/fsdp2_conversion.h"
#include "config/python_text.h"
#include "core/escaped.h"
#include "described_command.h"
#include "subcommands.h"

namespace accelerate::detail::cli {
namespace {

/// Where the converted file goes.
std::string output_of(const Arguments& given) {
  if (!given.config_file) throw UsageError("--config_file is missing: give the config file to convert.");
  if (!given.output_file && !given.overwrite) {
    throw UsageError("Neither --output_file nor --overwrite is given: name a file to write, or overwrite the config file.");
  }
  if (given.output_file && !given.overwrite && std::filesystem::exists(*given.output_file)) {
    throw UsageError("--output_file is '" + *given.output_file + "', which exists: choose another, or give --overwrite.");
  }
  return given.output_file.value_or(*given.config_file);
}

int convert_given(const Arguments& given) {
  try {
    const std::string output = output_of(given);
    const auto conversion = to_fsdp2(read_config_values(*given.config_file), *given.config_file);
    for (const auto& note : conversion.notes) tell_problem("accelerate to-fsdp2", note);
    write_config_text(python_yaml(conversion.config), output);
    std::printf("The configuration is saved in %s.\n", escaped(output).c_str());
    return 0;
  } catch (const UsageError& error) {
    tell_problem("accelerate to-fsdp2", error.what());
    return kUsageExitCode;
  }
}

}  // namespace

int run_to_fsdp2_command(std::vector<std::string> arguments) { return run_described("to-fsdp2", arguments, convert_given); }

}  // namespace accelerate::detail::cli
