#pragma once

#include <functional>
#include <optional>
#include <string>

namespace accelerate {

/// Looks up an environment variable. The process's own environment is `process_environment`; tests pass a table.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// The environment of this process.
std::optional<std::string> process_environment(const std::string& name);

/// The rank and world size of this process, as given by its launcher. A single process is rank 0 of 1.
struct LaunchEnvironment {
  int process_index = 0;
  int num_processes = 1;
  int local_process_index = 0;
  int local_num_processes = 1;
  /// True when a launcher was found, also for a single process.
  bool launched = false;
  /// Where rank 0 can be reached.
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
  /// True under torchrun, whose agent hosts the store: every rank is then a client.
  bool agent_hosts_store = false;
  /// How often the launcher has restarted the group: keys of an earlier attempt must not be seen.
  int restart_count = 0;
  /// The id of this job from the user (ACCELERATE_RUN_ID), torchrun or Slurm, the same on all ranks; empty when there is none.
  std::string run_id;
  /// The same text on every process of one host, and different on other hosts.
  std::string machine;
  /// Which launcher was recognised, for messages: "torchrun", "Open MPI", "MPICH", "MVAPICH", "Slurm" or "none".
  std::string launcher = "none";
};

/// Reads the variables of `accelerate launch` and torchrun, MPICH/Intel MPI, Open MPI, MVAPICH and Slurm, in this order.
/// Pure: it depends on nothing but `environment`. Throws ConfigError naming the invalid or missing variable.
LaunchEnvironment read_launch_environment(const Environment& environment = process_environment);

/// "1", "true", "yes", "on", "y", "t" and their opposites in any case; anything else is a ConfigError naming `what`.
bool parse_flag(const std::string& text, const std::string& what);

/// The flag in variable `name`, or `fallback` when it is not set (an empty value is an error, as in Python).
bool flag_from(const Environment& environment, const std::string& name, bool fallback);

/// The first of `names` that holds an integer >= 0, or nothing. Any other value is a ConfigError.
std::optional<int> integer_from(const Environment& environment, std::initializer_list<const char*> names);

}  // namespace accelerate
