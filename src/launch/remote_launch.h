#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <accelerate/launch/launch_plan.h>

#include "launch/launch_arguments.h"

namespace accelerate::detail {

/// Whether --deepspeed_hostfile has effect on this launch: on that of a program that needs no launcher of DeepSpeed's own.
bool uses_host_file(const LaunchSettings& merged);

/// With --deepspeed_multinode_launcher nossh, every host runs the command: `arguments` with the rank of this host, found by its
/// name in the hostfile, the number of hosts, the address of the first, and the number of processes. Other arguments stay as they
/// are. `merged` are the settings of line and file.
LaunchArguments with_rank_of_host_file(LaunchArguments arguments, const LaunchSettings& merged, const MachineFacts& machine);

/// Whether this launch starts others, on the hosts of --deepspeed_hostfile.
bool is_remote(const LaunchSettings& merged);

/// The plan of such a launch: its workers are ssh, or pdsh, which start this launcher on every host, with the settings of the
/// command line. `has_config`: a config file is in use. UsageError and ConfigError name the flag, file, line, host or
/// variable.
LaunchPlan plan_remote_launch(const LaunchArguments& arguments, const LaunchSettings& merged, bool has_config,
                              const Environment& environment, const MachineFacts& machine);

}  // namespace accelerate::detail
