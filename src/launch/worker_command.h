#pragma once

#include <map>
#include <string>
#include <vector>

#include <accelerate/launch/launch_plan.h>
#include "launch/launch_settings.h"

namespace accelerate::detail {

/// Whether Python runs the program: a module, NAME.py without --no_python, or a command that begins with python.
bool is_python(const LaunchSettings& settings);

/// The command of a worker: the program, run by python3 (or PYTHON_EXEC) if `is_python`. `unbuffered`: with python's -u, as
/// torchrun does.
std::vector<std::string> worker_command(const LaunchSettings& settings, bool unbuffered, const Environment& environment);

/// The variables that ranks of an MPI job on other hosts need: those of this launch, and those that any launch passes on.
std::vector<std::string> exported_names(const std::map<std::string, std::string>& variables, const MachineFacts& machine);

/// The command that has MPI start the processes of `options` on the machines of --mpirun_hostfile. `exported` names the variables
/// that they need.
std::vector<std::string> mpi_command(const MpiLauncher& mpi, const LaunchSettings& settings, const LaunchOptions& options,
                                     const Environment& environment, const std::vector<std::string>& exported);

/// The command that has DeepSpeed start the processes of `options` on several machines.
std::vector<std::string> deepspeed_command(const LaunchSettings& settings, const LaunchOptions& options);

}  // namespace accelerate::detail
