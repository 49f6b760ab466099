#include "launch/worker_command.h"

#include <set>

#include "hosts/forwarded_variables.h"

namespace accelerate::detail {
namespace {

bool is_script(const LaunchSettings& settings) {
  return settings.module || (settings.command.front().ends_with(".py") && !settings.no_python);
}

void append(std::vector<std::string>& command, const std::vector<std::string>& more) {
  command.insert(command.end(), more.begin(), more.end());
}

}  // namespace

bool is_python(const LaunchSettings& settings) {
  const std::string& program = settings.command.front();
  return is_script(settings) || program.substr(program.rfind('/') + 1).starts_with("python");
}

std::vector<std::string> worker_command(const LaunchSettings& settings, bool unbuffered, const Environment& environment) {
  if (!is_script(settings)) return settings.command;
  std::vector<std::string> command = {environment("PYTHON_EXEC").value_or("python3")};
  if (unbuffered) command.emplace_back("-u");
  if (settings.module) command.emplace_back("-m");
  append(command, settings.command);
  return command;
}

std::vector<std::string> exported_names(const std::map<std::string, std::string>& variables, const MachineFacts& machine) {
  std::set<std::string> names;
  for (const auto& [name, value] : variables) names.insert(name);
  for (const std::string& name : machine.variable_names()) {
    if (is_forwarded(name) || name == "ACCELERATE_RENDEZVOUS_SECRET") names.insert(name);
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> mpi_command(const MpiLauncher& mpi, const LaunchSettings& settings, const LaunchOptions& options,
                                     const Environment& environment, const std::vector<std::string>& exported) {
  const int per_machine = options.num_processes ? *options.num_processes / options.num_machines : 1;
  std::vector<std::string> command = {mpi.program, mpi.open_mpi ? "--hostfile" : "-f", *settings.mpirun_hostfile,
                                      mpi.open_mpi ? "--npernode" : "-ppn", std::to_string(per_machine)};
  if (options.num_processes) append(command, {"-n", std::to_string(*options.num_processes)});
  if (mpi.open_mpi) append(command, {"--bind-to", "socket"});
  // Open MPI gives ranks on other hosts only what is named; the others give them all variables.
  for (const std::string& name : mpi.open_mpi ? exported : std::vector<std::string>()) append(command, {"-x", name});
  append(command, worker_command(settings, false, environment));
  return command;
}

std::vector<std::string> deepspeed_command(const LaunchSettings& settings, const LaunchOptions& options) {
  const std::string launcher = settings.deepspeed_multinode_launcher.value_or("pdsh");
  std::vector<std::string> command = {"deepspeed", "--hostfile", settings.deepspeed_hostfile.value_or("None")};
  if (launcher == "nossh") {
    append(command, {"--node_rank", std::to_string(options.machine_rank), "--no_ssh"});
  } else {
    append(command, {"--no_local_rank", "--launcher", launcher});
  }
  if (settings.deepspeed_exclusion_filter) {
    append(command, {"--exclude", *settings.deepspeed_exclusion_filter});
  } else if (settings.deepspeed_inclusion_filter) {
    append(command, {"--include", *settings.deepspeed_inclusion_filter});
  } else {
    append(command, {"--num_gpus", std::to_string(options.num_processes.value_or(options.num_machines) / options.num_machines)});
  }
  if (options.main_process_ip) append(command, {"--master_addr", *options.main_process_ip});
  append(command, {"--master_port", std::to_string(options.main_process_port.value_or(29500))});
  if (settings.module) command.emplace_back("--module");
  // DeepSpeed runs everything with Python unless it is told not to.
  if (!is_script(settings)) command.emplace_back("--no_python");
  append(command, settings.command);
  return command;
}

}  // namespace accelerate::detail
