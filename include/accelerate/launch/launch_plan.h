#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/core/launch_environment.h>
#include <accelerate/elastic/machine_settings.h>
#include <accelerate/launch/machine_facts.h>
#include <accelerate/output/output_plan.h>

namespace accelerate {

/// The options of `accelerate launch`. `plan_launch` chooses those that are not set.
struct LaunchOptions {
  /// Run on the CPU even if there are GPUs.
  bool cpu = false;
  /// Total number of processes over all machines. Default: one per GPU, or one on the CPU, on each machine.
  std::optional<int> num_processes = {};
  /// Number of processes on this machine, instead of an equal part of all.
  std::optional<int> processes_per_machine = {};
  /// Number of machines (nodes); a launcher runs on each, with the same options except for its rank.
  int num_machines = 1;
  /// With `dynamic_join`: the fewest machines that a run starts and continues with. Default: all.
  int min_machines = 0;
  /// Machines are numbered as they join, and the ranks with them. They need no rank of their own.
  bool dynamic_join = false;
  /// Machines may start different numbers of processes.
  bool heterogeneous = false;
  /// Rank of this machine, from 0.
  int machine_rank = 0;
  /// With `dynamic_join`: whether this machine is machine 0. Default: the first launcher at `main_process_ip` is.
  std::optional<bool> hosts_rendezvous = {};
  /// Name of the job, the same on all machines. Default: ACCELERATE_RUN_ID, or the name of the program.
  std::string rendezvous_id = {};
  /// Address of machine 0, as the others reach it. Required with several machines.
  std::optional<std::string> main_process_ip = {};
  /// Port on which rank 0 listens; 0 picks a free one. Default: 29500, or a free one when that is in use. With several machines
  /// it is where machine 0's launcher listens for the others, 29500 or the one given, and rank 0 gets a free one.
  std::optional<int> main_process_port = {};
  /// The id of this job, the same on all machines; ACCELERATE_RUN_ID overrides it. Default: the name of the program.
  std::string run_id = {};
  /// OMP_NUM_THREADS of each process. Default: the variable itself, or this process's share of the cores.
  std::optional<int> num_cpu_threads_per_process = {};
  /// "no", "fp16", "bf16" or "fp8".
  std::string mixed_precision = "no";
  /// The GPUs to use, as CUDA_VISIBLE_DEVICES names them, or "all".
  std::string gpu_ids = "all";
  /// Pin each process to the CPUs near its GPU, or to its share of the CPUs.
  bool enable_cpu_affinity = false;
  /// Streams of the ranks that are also written to log files: "0" none, "1" stdout, "2" stderr, "3" both, or one of these for
  /// each local rank, as in "0:3,1:0".
  std::string tee = "0";
  /// Folder for log files; without `tee`, both streams of every rank are logged. Default: a temporary folder.
  std::string log_dir = {};
  /// ROLE_NAME of the processes, and the beginning of a teed line.
  std::string role = "default";
  /// Workers check their collectives (ACCELERATE_DEBUG_MODE).
  bool debug = false;
  /// How often all ranks are restarted after a failure.
  int max_restarts = 0;
  /// Seconds that workers get to stop before SIGKILL.
  double grace_period = 30;
  /// Seconds that a machine waits for the others before each start.
  double join_timeout = 900;
  /// With `dynamic_join`: seconds that enough machines wait for more.
  double last_call = 30;
  /// Suppress the launcher's own messages.
  bool quiet = false;
  /// Set RANK and the like for a single process too, as torchrun does.
  bool place_lone_process = false;
  /// More environment variables for the processes. They override those that the launcher sets.
  std::map<std::string, std::string> variables = {};
  /// The program and its arguments, passed on untouched.
  std::vector<std::string> command = {};
};

/// One process to start.
struct WorkerPlan {
  /// Its global rank, from 0.
  int rank = 0;
  /// What messages call it, if it is no rank: the host on which it starts a launcher, or mpirun.
  std::string name = {};
  /// The program and its arguments.
  std::vector<std::string> argv = {};
  /// Environment variables added to the launcher's environment.
  std::map<std::string, std::string> variables = {};
  /// CPUs that it is pinned to; none: those of the launcher.
  std::vector<int> cpus = {};
};

/// Everything a launch will do, decided before anything is started.
struct LaunchPlan {
  /// The workers of this machine, in rank order.
  std::vector<WorkerPlan> workers = {};
  /// Variables of the launcher's environment that no worker inherits: they describe another launch.
  std::vector<std::string> removed_variables = {};
  /// Messages about choices made for the user; a launch begins with them.
  std::vector<std::string> notes = {};
  /// Where the output of the workers goes.
  OutputPlan output = {};
  /// How long workers get to stop before SIGKILL.
  std::chrono::milliseconds grace_period = std::chrono::seconds(30);
  /// After one rank has failed, how long the others may continue before they are asked to stop: their own errors often say
  /// which peer was lost, and in which call.
  std::chrono::milliseconds last_words = std::chrono::seconds(1);
  /// How often all ranks are restarted after a failure.
  int max_restarts = 0;
  /// Workers get signals as lines on their stdin, which closes when the launcher is gone: they are connections to launchers on
  /// other hosts.
  bool signals_to_stdin = false;
  /// This launcher is such a one: it takes signals from its stdin, the end of which is SIGTERM.
  bool signals_from_stdin = false;
  /// With several machines, how their launchers start and end the ranks together. MASTER_PORT of the workers is chosen then.
  std::optional<MachineSettings> machines = {};
};

/// Decides which processes run and with which environment. Pure: it depends on nothing but its arguments.
/// Throws UsageError naming the invalid flag, ConfigError naming the invalid variable.
LaunchPlan plan_launch(const LaunchOptions& options, const Environment& environment, const MachineFacts& machine);

}  // namespace accelerate
