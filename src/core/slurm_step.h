#pragma once

#include <optional>
#include <string>
#include <vector>

#include <accelerate/core/launch_environment.h>

namespace accelerate::detail {

/// What Slurm tells each task of a step, which is what `srun` starts, in SLURM_STEP_* and beside them. A batch script and the
/// shell of salloc have SLURM_PROCID and SLURM_NTASKS at most, but are no step: what they start stands alone, as under any shell.
struct SlurmStep {
  /// All tasks of the step, and which of them this is.
  int tasks = 1;
  std::optional<int> task = {};
  /// The same on this node.
  std::optional<int> local_tasks = {};
  std::optional<int> local_task = {};
  /// The nodes of the step, and which of them this is.
  int nodes = 1;
  int node = 0;
  /// The name of node 0, by which the others reach it; empty when it is not told.
  std::string first_host = {};
  /// A port that other jobs and steps on the same nodes are not likely to use.
  int port = 0;
  /// The job and the step; empty where its parts have different numbers (heterogeneous jobs).
  std::string name = {};
};

/// Nothing outside of a step. ConfigError names the variable that cannot be understood.
std::optional<SlurmStep> read_slurm_step(const Environment& environment);

/// The hosts of a Slurm host list, in its order: "gpu[08-10,12],login" is gpu08, gpu09, gpu10, gpu12 and login. Nothing when it
/// is none.
std::optional<std::vector<std::string>> expand_host_list(const std::string& list);

}  // namespace accelerate::detail
