#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/core/launch_environment.h>
#include <accelerate/launch/machine_facts.h>
#include <accelerate/output/output_plan.h>

namespace accelerate {

/// What the user asks of `accelerate launch`. What is left out is chosen by `plan_launch`.
struct LaunchOptions {
  /// Run on the CPU even where there are GPUs.
  bool cpu = false;
  /// Processes to start on all machines together. Default: one for each GPU, or one on the CPU, on each machine.
  std::optional<int> num_processes = {};
  /// Machines that take part; a launcher runs on each, with the same options but for its rank.
  int num_machines = 1;
  /// Which of them this one is, from 0.
  int machine_rank = 0;
  /// Address of machine 0, as the others reach it. Several machines need it; one does not.
  std::optional<std::string> main_process_ip = {};
  /// Port on which rank 0 meets the others; 0 picks a free one. Default: 29500, or a free one when that is in use. Several
  /// machines have to agree on it, so there it is 29500 or what was asked for.
  std::optional<int> main_process_port = {};
  /// OMP_NUM_THREADS of each process. Default: the variable itself, or this process's share of the cores.
  std::optional<int> num_cpu_threads_per_process = {};
  /// "no", "fp16", "bf16" or "fp8".
  std::string mixed_precision = "no";
  /// The GPUs to use, as CUDA_VISIBLE_DEVICES names them, or "all".
  std::string gpu_ids = "all";
  /// Each process stays on the CPUs near its GPU, or on its share of them.
  bool enable_cpu_affinity = false;
  /// Streams of the ranks that are written to files as well: "0" none, "1" stdout, "2" stderr, "3" both, or one of these for
  /// each local rank, as in "0:3,1:0".
  std::string tee = "0";
  /// Folder for these files; without `tee`, it asks for both streams of every rank. Default: one among the temporary files.
  std::string log_dir = {};
  /// ROLE_NAME of the processes, and the beginning of a teed line.
  std::string role = "default";
  /// Workers check their collectives (ACCELERATE_DEBUG_MODE).
  bool debug = false;
  /// How often all ranks are started again after one has failed.
  int max_restarts = 0;
  /// Seconds that workers may take to stop before they are killed.
  double grace_period = 30;
  /// The launcher says nothing of its own.
  bool quiet = false;
  /// A lone process is told its place too, as torchrun does.
  bool place_lone_process = false;
  /// More variables for the processes. They come before those that the launcher would choose itself.
  std::map<std::string, std::string> variables = {};
  /// The program and its arguments, passed on untouched.
  std::vector<std::string> command = {};
};

/// One process to start.
struct WorkerPlan {
  /// Its place among the workers of all machines, from 0.
  int rank = 0;
  /// The program and its arguments.
  std::vector<std::string> argv = {};
  /// Variables it gets on top of the launcher's environment.
  std::map<std::string, std::string> variables = {};
  /// CPUs it is kept on; none: wherever the launcher may run.
  std::vector<int> cpus = {};
};

/// Everything a launch will do, decided before anything is started.
struct LaunchPlan {
  /// Those of this machine, in rank order.
  std::vector<WorkerPlan> workers = {};
  /// Variables of the launcher's environment that no worker inherits: they describe another launch.
  std::vector<std::string> removed_variables = {};
  /// Lines for the user about choices made on his behalf; a launch begins with them.
  std::vector<std::string> notes = {};
  /// What becomes of all that the workers write.
  OutputPlan output = {};
  /// How long workers that were asked to stop may take before they are killed.
  std::chrono::milliseconds grace_period = std::chrono::seconds(30);
  /// After one rank has failed, how long the others may go on before they are asked to stop: their own errors often say
  /// which peer was lost, and in which call.
  std::chrono::milliseconds last_words = std::chrono::seconds(1);
  /// How often all ranks are started again after one has failed.
  int max_restarts = 0;
};

/// Decides which processes run and with which environment. Pure: it depends on nothing but its arguments.
/// Throws UsageError naming the flag that is wrong, ConfigError naming the variable that is.
LaunchPlan plan_launch(const LaunchOptions& options, const Environment& environment, const MachineFacts& machine);

}  // namespace accelerate
