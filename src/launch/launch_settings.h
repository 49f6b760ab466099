#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace accelerate::detail {

struct LaunchFlag;

/// A value that is passed on to Python programs with the type that the line or the file gave it: DeepSpeed, for example, accepts
/// "auto" instead of many numbers. Null: there is none.
using PythonValue = nlohmann::json;

/// The settings of a launch, from the command line and the config file. Each member belongs to the flag of its name, unless it
/// says otherwise; launch_flags binds them.
struct LaunchSettings {
  // In general.
  std::optional<std::string> config_file = {};
  bool quiet = false;
  bool module = false;
  bool no_python = false;
  bool debug = false;
  bool dry_run = false;

  // What to run on. `use_cpu` is --cpu, or the key of a config file.
  bool cpu = false;
  bool use_cpu = false;
  bool multi_gpu = false;
  bool tpu = false;
  bool tpu_use_cluster = false;
  bool downcast_bf16 = false;
  bool use_deepspeed = false;
  bool use_fsdp = false;
  bool use_megatron_lm = false;
  bool use_parallelism_config = false;

  // How many processes, and how each computes.
  std::optional<int> num_processes = {};
  std::optional<std::string> nproc_per_node = {};
  std::optional<int> num_cpu_threads_per_process = {};
  bool enable_cpu_affinity = false;
  std::optional<std::string> gpu_ids = {};
  std::optional<std::string> mixed_precision = {};
  std::optional<std::string> dynamo_backend = {};

  // Machines and rendezvous.
  std::optional<int> num_machines = {};
  /// Set by --num_machines MIN:MAX.
  std::optional<int> min_machines = {};
  bool heterogeneous = false;
  std::optional<int> machine_rank = {};
  std::optional<std::string> main_process_ip = {};
  std::optional<int> main_process_port = {};
  std::string rdzv_backend = {};
  std::string rdzv_conf = {};
  std::optional<std::string> rdzv_id = {};
  std::optional<std::string> rdzv_endpoint = {};
  std::optional<std::string> mpirun_hostfile = {};
  bool standalone = false;
  bool submit = false;
  std::string sbatch = {};
  /// From a scheduler: the id of the job, the same on all machines.
  std::string run_id = {};

  // Output and failures.
  std::string tee = {};
  std::optional<std::string> log_dir = {};
  std::string role = {};
  int max_restarts = 0;
  double grace_period = 0;
  double monitor_interval = 0;
  std::optional<std::string> aws_access_key_id = {};
  std::optional<std::string> aws_secret_access_key = {};

  // Settings for Python programs that affect the plan. `deepspeed_fields` names those that come from a config file.
  std::string deepspeed_fields = {};
  std::optional<std::string> deepspeed_hostfile = {};
  std::optional<std::string> deepspeed_exclusion_filter = {};
  std::optional<std::string> deepspeed_inclusion_filter = {};
  std::optional<std::string> deepspeed_multinode_launcher = {};
  std::string fsdp_version = {};
  std::string fsdp_cpu_ram_efficient_loading = {};
  std::string fsdp_sync_module_states = {};
  PythonValue fp8_override_linear_precision = {};
  PythonValue parallelism_config_cp_size = {};
  PythonValue parallelism_config_sp_size = {};

  /// Values of the flags that have no member and are passed on to Python programs.
  std::map<const LaunchFlag*, PythonValue> passed_on = {};
  /// Keys in sections of a config file that no flag has.
  std::map<std::string, PythonValue> file_keys = {};
  /// The program and its arguments.
  std::vector<std::string> command = {};

  bool operator==(const LaunchSettings&) const = default;
};

/// The member of LaunchSettings that a flag sets, if it has one.
using SettingMember = std::variant<std::monostate, bool LaunchSettings::*, int LaunchSettings::*, double LaunchSettings::*,
                                   std::string LaunchSettings::*, std::optional<int> LaunchSettings::*,
                                   std::optional<std::string> LaunchSettings::*, PythonValue LaunchSettings::*>;

}  // namespace accelerate::detail
