#pragma once

#include <optional>
#include <string>

#include <accelerate/core/launch_environment.h>

namespace accelerate::detail {

/// One of several tasks that a scheduler starts on each machine, every one with a launcher of its own.
struct ClusterTask {
  int rank = 0, tasks = 1;
  int local_rank = 0, local_tasks = 1;
  int machines = 1, machine_rank = 0;
};

/// Where a scheduler has put this launcher. What it leaves open is not set.
struct ClusterPlace {
  /// Who says so, for messages: "Slurm step 12.0".
  std::string source = {};
  std::optional<int> machines = {}, machine_rank = {};
  /// Fewer machines suffice.
  std::optional<int> min_machines = {};
  /// Where machine 0 is reached.
  std::optional<std::string> address = {};
  std::optional<int> port = {};
  /// The same as HOST:PORT, and how machines meet there: "static" or "c10d".
  std::optional<std::string> endpoint = {}, backend = {}, rendezvous_id = {};
  /// Processes of each machine, as --nproc_per_node takes them.
  std::optional<std::string> processes = {};
  /// GPUs and CPUs of this machine that are given to the job.
  std::optional<int> gpus = {}, cpus = {};
  std::optional<int> max_restarts = {};
  /// The id of the job, the same on all of its machines; empty when there is none.
  std::string run_id = {};
  /// Set when there are more tasks than machines.
  std::optional<ClusterTask> task = {};
  /// What the user should know; empty when there is nothing.
  std::string note = {};
  /// All of it is given, and agrees: what a command line says of machines either fits, or takes its place.
  bool complete = false;
};

/// What Slurm says of a job and a step; what the PyTorch training operator for Kubernetes and torchrun's users write into
/// PET_<FLAG>, and the completion index of an indexed Job. Pure: it depends on nothing but its argument. ConfigError names the
/// variable that cannot be understood.
std::optional<ClusterPlace> read_cluster_place(const Environment& environment);

}  // namespace accelerate::detail
