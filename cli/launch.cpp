#include <cerrno>  // program_invocation_name
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/core/error.h>
#include <accelerate/launch/supervisor.h>
#include "build_facts.h"
#include "config/config_file.h"
#include "job_file.h"
#include "job_submission.h"
#include "launch/command_plan.h"
#include "launch/launch_flags.h"
#include "launch/plan_text.h"
#include "program_name.h"
#include "subcommands.h"

namespace accelerate::detail::cli {
namespace {

int refuse(const std::string& problem, int exit_code) {
  tell_problem("accelerate launch", problem);
  return exit_code;
}

std::optional<Config> config_for(const LaunchSettings& settings) {
  if (settings.config_file) return read_config(*settings.config_file);
  const std::string path = default_config_path(process_environment);
  std::error_code ignored;
  if (!uses_default_config(settings) || !std::filesystem::is_regular_file(path, ignored)) return std::nullopt;
  return read_config(path);
}

/// As this program was called: by its name, which the nodes find on PATH too, or by its place.
std::string own_call() {
  const bool by_name = std::string(program_invocation_name).find('/') == std::string::npos;
  return by_name ? program_name() : own_executable();
}

int submit(const LaunchArguments& arguments, const std::optional<Config>& config, const std::vector<std::string>& line) {
  if (!arguments.settings.submit) throw UsageError("--sbatch is given without --submit, which submits the launch to Slurm.");
  const std::string file = slurm_job_file(arguments, config ? &config->fields : nullptr, line, own_call(), process_environment);
  if (!arguments.settings.dry_run) return submit_job(file);
  std::fputs(file.c_str(), stdout);
  return 0;
}

}  // namespace

int run_launch_command(std::vector<std::string> line) {
  if (const auto asked = asked_help(line)) {
    std::fputs(as_called(launch_help(*asked)).c_str(), stdout);
    return 0;
  }
  PortReservation port;  // until the launch has ended
  LaunchPlan plan;
  bool dry_run = false;
  try {
    const LaunchArguments arguments = parse_launch_arguments(line);
    dry_run = arguments.settings.dry_run;
    const auto config = config_for(arguments.settings);
    if (arguments.settings.submit || arguments.gave(&LaunchSettings::sbatch)) return submit(arguments, config, line);
    plan = plan_command(arguments, config ? &config->fields : nullptr, process_environment, read_machine_facts(port));
  } catch (const ConfigError& error) {
    return refuse(error.what(), 1);
  } catch (const Error& error) {
    return refuse(error.what(), kUsageExitCode);
  }
  if (!dry_run) return run_launch(plan);
  std::fputs(plan_text(plan, process_environment).c_str(), stdout);
  return 0;
}

}  // namespace accelerate::detail::cli
