#include "launch/worker_command.h"

namespace accelerate {
namespace {

bool is_script(const LaunchArguments& arguments) {
  return arguments.is_on("module") || (arguments.command.front().ends_with(".py") && !arguments.is_on("no_python"));
}

void append(std::vector<std::string>& command, const std::vector<std::string>& more) {
  command.insert(command.end(), more.begin(), more.end());
}

}  // namespace

bool is_python(const LaunchArguments& arguments) {
  const std::string& program = arguments.command.front();
  return is_script(arguments) || program.substr(program.rfind('/') + 1).starts_with("python");
}

std::vector<std::string> worker_command(const LaunchArguments& arguments, bool unbuffered, const Environment& environment) {
  if (!is_script(arguments)) return arguments.command;
  std::vector<std::string> command = {environment("PYTHON_EXEC").value_or("python3")};
  if (unbuffered) command.emplace_back("-u");
  if (arguments.is_on("module")) command.emplace_back("-m");
  append(command, arguments.command);
  return command;
}

std::vector<std::string> mpi_command(const MpiLauncher& mpi, const LaunchArguments& arguments, const LaunchOptions& options,
                                     const Environment& environment) {
  const int per_machine = options.num_processes ? *options.num_processes / options.num_machines : 1;
  std::vector<std::string> command = {mpi.program, mpi.open_mpi ? "--hostfile" : "-f", arguments.text("mpirun_hostfile"),
                                      mpi.open_mpi ? "--npernode" : "-ppn", std::to_string(per_machine)};
  if (options.num_processes) append(command, {"-n", std::to_string(*options.num_processes)});
  if (mpi.open_mpi) append(command, {"--bind-to", "socket"});
  append(command, worker_command(arguments, false, environment));
  return command;
}

std::vector<std::string> deepspeed_command(const LaunchArguments& arguments, const LaunchOptions& options) {
  const bool has_launcher = !arguments.values["deepspeed_multinode_launcher"].is_null();
  const std::string launcher = has_launcher ? arguments.text("deepspeed_multinode_launcher") : "pdsh";
  std::vector<std::string> command = {"deepspeed", "--hostfile", arguments.text("deepspeed_hostfile")};
  if (launcher == "nossh") {
    append(command, {"--node_rank", std::to_string(options.machine_rank), "--no_ssh"});
  } else {
    append(command, {"--no_local_rank", "--launcher", launcher});
  }
  if (!arguments.values["deepspeed_exclusion_filter"].is_null()) {
    append(command, {"--exclude", arguments.text("deepspeed_exclusion_filter")});
  } else if (!arguments.values["deepspeed_inclusion_filter"].is_null()) {
    append(command, {"--include", arguments.text("deepspeed_inclusion_filter")});
  } else {
    append(command, {"--num_gpus", std::to_string(options.num_processes.value_or(options.num_machines) / options.num_machines)});
  }
  if (options.main_process_ip) append(command, {"--master_addr", *options.main_process_ip});
  append(command, {"--master_port", std::to_string(options.main_process_port.value_or(29500))});
  if (arguments.is_on("module")) command.emplace_back("--module");
  // DeepSpeed runs everything with Python unless it is told not to.
  if (!is_script(arguments)) command.emplace_back("--no_python");
  append(command, arguments.command);
  return command;
}

}  // namespace accelerate
