#include "launch/command_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>

#include <accelerate/core/error.h>
#include "config/config_schema.h"
#include "config/python_text.h"
#include "elastic/cluster_place.h"
#include "hosts/gpu_list.h"
#include "launch/launch_flags.h"
#include "launch/launch_merge.h"
#include "launch/launch_variables.h"
#include "launch/place_variables.h"
#include "launch/remote_launch.h"
#include "launch/worker_command.h"

namespace accelerate::detail {
namespace {

using Json = nlohmann::json;

/// The launchers of Python Accelerate; they differ in the environment of their workers.
enum class Launcher { simple, multi_gpu, deepspeed, tpu };

/// A flag that selects the hardware or the training paradigm.
struct Choice {
  const char* flag;
  bool LaunchSettings::*member;
};
constexpr std::array kChoices = {Choice{"--cpu", &LaunchSettings::cpu}, Choice{"--multi_gpu", &LaunchSettings::multi_gpu},
                                 Choice{"--tpu", &LaunchSettings::tpu}, Choice{"--use_deepspeed", &LaunchSettings::use_deepspeed},
                                 Choice{"--use_fsdp", &LaunchSettings::use_fsdp}};

bool is_sharded(const LaunchSettings& settings) { return settings.use_deepspeed || settings.use_fsdp; }

void check_together(const LaunchSettings& given) {
  std::vector<std::string> chosen;
  for (const Choice& choice : kChoices) {
    // C++ programs shard models on the CPU too.
    const bool fits = choice.member == &LaunchSettings::cpu && is_sharded(given) && !is_python(given);
    if (given.*choice.member && !fits) chosen.emplace_back(choice.flag);
  }
  if (chosen.size() > 1) {
    throw UsageError(fmt::format("{} cannot be used together: choose one of them.", fmt::join(chosen, " and ")));
  }
  if (given.multi_gpu && given.num_processes && *given.num_processes < 2) {
    throw UsageError(fmt::format("--num_processes is {} with --multi_gpu, which needs at least 2.", *given.num_processes));
  }
  if (given.use_parallelism_config && (!given.use_fsdp || given.fsdp_version == "1")) {
    throw UsageError("--use_parallelism_config needs --use_fsdp and --fsdp_version 2.");
  }
  if (given.module && given.no_python) {
    throw UsageError("--module and --no_python cannot be used together: a module is run by Python.");
  }
}

/// What --rdzv_conf says of a key, if anything.
std::optional<std::string> rendezvous_setting(const LaunchSettings& given, const std::string& key) {
  const std::string settings = "," + given.rdzv_conf + ",";
  const size_t begin = settings.rfind("," + key + "=");
  if (begin == settings.npos) return std::nullopt;
  const size_t value = begin + key.size() + 2;
  return settings.substr(value, settings.find(',', value) - value);
}

std::optional<double> seconds_of(const LaunchSettings& given, const std::string& key) {
  const auto text = rendezvous_setting(given, key);
  if (!text) return std::nullopt;
  double seconds = 0;
  const auto [end, problem] = std::from_chars(text->data(), text->data() + text->size(), seconds);
  if (problem != std::errc() || end != text->data() + text->size() || !(seconds > 0 && seconds <= 1e6))
    throw UsageError(fmt::format("--rdzv_conf has {}={}; give seconds above 0.", key, *text));
  return seconds;
}

/// Torchrun's names and settings for how machines join.
void set_rendezvous(LaunchOptions& options, const LaunchArguments& arguments) {
  const LaunchSettings& merged = arguments.settings;
  const bool ranked = arguments.gave(&LaunchSettings::machine_rank);
  options.dynamic_join = options.num_machines > 1 && merged.rdzv_backend != "static" && !ranked;
  options.min_machines = merged.min_machines.value_or(0);
  options.heterogeneous = merged.heterogeneous;
  options.rendezvous_id = merged.rdzv_id.value_or("");
  for (const char* key : {"timeout", "join_timeout"}) {
    if (const auto seconds = seconds_of(merged, key)) options.join_timeout = *seconds;
  }
  options.last_call = seconds_of(merged, "last_call_timeout").value_or(options.last_call);
  if (const auto host = rendezvous_setting(merged, "is_host"))
    options.hosts_rendezvous = parse_flag(*host, "--rdzv_conf is_host");
}

/// HOST, HOST:PORT or [IPv6 address]:PORT, unless the flags of ours say it.
void take_endpoint(LaunchArguments& arguments) {
  LaunchSettings& settings = arguments.settings;
  if (!settings.rdzv_endpoint) return;
  const std::string& text = *settings.rdzv_endpoint;
  const size_t colon = text.rfind(':');
  const bool has_port = colon != text.npos && (text.find(':') == colon || (text.front() == '[' && text[colon - 1] == ']'));
  std::string host = has_port ? text.substr(0, colon) : text;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  int port = 0;
  const char* end = text.data() + text.size();
  if (host.empty() || (has_port && std::from_chars(text.data() + colon + 1, end, port).ptr != end)) {
    throw UsageError(fmt::format("--rdzv_endpoint is '{}'; give HOST:PORT.", text));
  }
  if (!settings.main_process_ip || !arguments.gave(&LaunchSettings::main_process_ip)) settings.main_process_ip = host;
  if (has_port && !arguments.gave(&LaunchSettings::main_process_port)) settings.main_process_port = port;
}

void check_rendezvous(const LaunchSettings& given) {
  const std::string& settings = given.rdzv_conf;
  for (size_t begin = 0; begin < settings.size();) {
    const size_t end = std::min(settings.find(',', begin), settings.size());
    const size_t equals = settings.find('=', begin);
    if (equals == begin || equals >= end) {
      throw UsageError(fmt::format("--rdzv_conf is '{}'; give key=value, separated by commas.", settings));
    }
    begin = end + 1;
  }
  if (given.monitor_interval <= 0) {
    throw UsageError(fmt::format("--monitor_interval is {}; give seconds above 0.", python_str(given.monitor_interval)));
  }
}

Launcher launcher_for(const LaunchSettings& merged, const Json* config, const MachineFacts& machine) {
  const bool native = !is_python(merged);
  if (merged.cpu || (native && merged.use_cpu && is_sharded(merged))) return Launcher::simple;
  // C++ programs read DeepSpeed's settings and need no launcher of its own, unless one is named.
  if (merged.use_deepspeed) {
    const std::string launcher = merged.deepspeed_multinode_launcher.value_or("standard");
    const bool ours = launcher == "standard" || launcher == "ssh" || uses_host_file(merged);
    return native && ours ? Launcher::multi_gpu : Launcher::deepspeed;
  }
  if (merged.use_fsdp || merged.use_megatron_lm || merged.multi_gpu) return Launcher::multi_gpu;
  if (merged.tpu) return Launcher::tpu;
  // Without a config file, several processes on a machine with several GPUs mean multi-GPU.
  const bool several = merged.num_processes.value_or(machine.gpus) > 1;
  return config == nullptr && several && machine.gpus > 1 ? Launcher::multi_gpu : Launcher::simple;
}

std::string who_asks_for_gpus(const LaunchArguments& merged) {
  return merged.gave(&LaunchSettings::multi_gpu) ? "--multi_gpu is given"
                                                 : "distributed_type in the config file is a multi-GPU type";
}

/// The GPUs that were chosen, or nothing when all are.
std::optional<std::string> chosen_gpus(const LaunchSettings& merged) {
  return merged.gpu_ids != "all" ? merged.gpu_ids : std::nullopt;
}

void check_gpus(const LaunchArguments& arguments, const MachineFacts& machine) {
  const LaunchSettings& merged = arguments.settings;
  const auto ids = chosen_gpus(merged);
  if (merged.multi_gpu && merged.num_machines.value_or(1) <= 1 && ids && gpus_in(*ids).size() < 2) {
    throw UsageError(fmt::format(
        "--gpu_ids is '{}', but the launch is multi-GPU (--multi_gpu, or distributed_type in the config file): give at "
        "least two GPUs, or all.",
        *ids));
  }
  if (merged.multi_gpu && !merged.num_processes && machine.gpus == 0) {
    throw UsageError(fmt::format("{}, but no CUDA GPU was found on this machine: use --cpu, or give --num_processes.",
                                 who_asks_for_gpus(arguments)));
  }
  if (arguments.gave(&LaunchSettings::mixed_precision) && merged.mixed_precision == "bf16" && !machine.bf16 && !machine.tpu) {
    throw UsageError("--mixed_precision is 'bf16', but the GPUs of this machine do not support it: choose no or fp16.");
  }
}

LaunchOptions options_of(const LaunchArguments& arguments, Launcher launcher, const Environment& environment) {
  const LaunchSettings& merged = arguments.settings;
  LaunchOptions options;
  options.cpu = launcher == Launcher::simple && (merged.cpu || merged.use_cpu);
  options.num_processes = merged.num_processes;
  options.num_machines = merged.num_machines.value_or(1);
  options.machine_rank = merged.machine_rank.value_or(0);
  options.main_process_ip = merged.main_process_ip;
  options.main_process_port = merged.main_process_port;
  options.run_id = merged.run_id;
  options.num_cpu_threads_per_process = merged.num_cpu_threads_per_process;
  options.mixed_precision = merged.mixed_precision.value_or("no");
  options.gpu_ids = merged.gpu_ids.value_or("all");
  options.enable_cpu_affinity = merged.enable_cpu_affinity;
  options.tee = merged.tee;
  options.log_dir = merged.log_dir.value_or("");
  options.role = merged.role;
  options.debug = merged.debug;
  options.max_restarts = merged.max_restarts;
  options.grace_period = merged.grace_period;
  set_rendezvous(options, arguments);
  if (merged.nproc_per_node) options.processes_per_machine = *merged.num_processes / options.num_machines;
  options.quiet = merged.quiet;
  options.command = merged.command;
  options.place_lone_process = launcher != Launcher::simple;
  // As in Python, a config file without use_cpu keeps the cores from being divided among the processes.
  if (options.cpu && !merged.use_cpu && !options.num_cpu_threads_per_process) {
    options.num_cpu_threads_per_process = std::max(1, integer_from(environment, {"OMP_NUM_THREADS"}).value_or(1));
  }
  return options;
}

std::string python_path(const Environment& environment, const std::string& folder) {
  const std::string before = environment("PYTHONPATH").value_or("");
  return before.empty() ? folder : before + ":" + folder;
}

Variables variables_for(const LaunchSettings& merged, Launcher launcher, const Environment& environment,
                        const MachineFacts& machine) {
  Variables variables;
  const bool native = !is_python(merged);
  if (launcher == Launcher::deepspeed || (native && merged.use_deepspeed)) variables = deepspeed_variables(merged);
  if (launcher == Launcher::deepspeed) variables["PYTHONPATH"] = python_path(environment, machine.current_folder);
  variables.merge(dynamo_variables(merged));
  if (launcher == Launcher::simple && !merged.cpu && !merged.use_cpu) variables["ACCELERATE_USE_CPU"] = "False";
  if ((launcher == Launcher::multi_gpu || native) && merged.use_fsdp) variables.merge(fsdp_variables(merged));
  if (launcher == Launcher::multi_gpu && merged.use_megatron_lm) variables.merge(megatron_variables(merged));
  if ((launcher != Launcher::simple || native) && merged.use_parallelism_config) variables.merge(parallelism_variables(merged));
  if (merged.mixed_precision == "fp8") {
    if (!machine.has_fp8()) {
      throw UsageError(
          "mixed_precision is fp8, which needs a Python package (TransformerEngine, torchao or MS-AMP), but python3 on this "
          "machine has none of them: install one, or choose no, fp16 or bf16.");
    }
    variables.merge(fp8_variables(merged));
  }
  if (launcher != Launcher::simple && machine.lacks_peer_access) {
    for (const char* name : {"NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"}) {
      if (!environment(name)) variables[name] = "1";
    }
  }
  return variables;
}

// Settings for Python programs, each with the reason: they have no effect on C++ programs, or our Accelerator rejects them.
struct PythonSettings {
  std::vector<std::string> idle, refused;
};

PythonSettings python_settings(const LaunchSettings& merged, Launcher launcher) {
  PythonSettings found;
  const auto text = [](const char* what, const char* key) {
    return fmt::format("{} ({})", what, find_config_key(local_config_keys(), key)->without_effect);
  };
  const auto add = [&](const char* what, const char* key) { found.idle.push_back(text(what, key)); };
  const auto refuse = [&](const char* what, const char* key) { found.refused.push_back(text(what, key)); };
  const std::string backend = merged.dynamo_backend.value_or("no");
  if (backend != "no" && backend != "NO") add("dynamo_backend", "dynamo_config");
  if (launcher == Launcher::multi_gpu && merged.use_megatron_lm) refuse("use_megatron_lm", "megatron_lm_config");
  if (launcher != Launcher::deepspeed && !merged.deepspeed_hostfile) {
    for (const auto member : {&LaunchSettings::deepspeed_exclusion_filter, &LaunchSettings::deepspeed_inclusion_filter}) {
      if (merged.*member)
        found.idle.push_back(fmt::format("{} (it chooses among the hosts of --deepspeed_hostfile)", key_of(member)));
    }
  }
  if (merged.mixed_precision == "fp8") refuse("mixed_precision fp8", "fp8_config");
  if (launcher == Launcher::tpu) add("tpu", "tpu_name");
  return found;
}

void add_notes(LaunchPlan& plan, const LaunchArguments& arguments, Launcher launcher, const Json* config,
               const MachineFacts& machine) {
  const LaunchSettings& merged = arguments.settings;
  if (!is_python(merged)) {
    const auto settings = python_settings(merged, launcher);
    if (!settings.idle.empty())
      plan.notes.push_back(fmt::format("{} has no effect on C++ programs.", fmt::join(settings.idle, ", ")));
    if (!settings.refused.empty())
      plan.notes.push_back(fmt::format("{} is not supported by C++ programs: their Accelerator throws an error.",
                                       fmt::join(settings.refused, ", ")));
  }
  const bool in_file = config != nullptr && config->value("distributed_type", Json()) == "MULTI_GPU";
  if (merged.multi_gpu && (in_file || arguments.gave(&LaunchSettings::multi_gpu)) && machine.gpus == 0) {
    plan.notes.push_back(fmt::format(
        "{}, but no CUDA GPU was found in /proc/driver/nvidia or /dev: a program that finds none either falls back to "
        "the CPU.",
        who_asks_for_gpus(arguments)));
  }
  for (const auto member : {&LaunchSettings::aws_access_key_id, &LaunchSettings::aws_secret_access_key}) {
    if (arguments.gave(member))
      plan.notes.push_back(fmt::format("--{} has no effect: SageMaker jobs are not supported.", key_of(member)));
  }
  if (merged.mpirun_hostfile && launcher != Launcher::simple) {
    plan.notes.emplace_back("mpirun_hostfile has no effect: MPI launches are for CPU training only.");
  }
  if (arguments.gave(&LaunchSettings::rdzv_backend) && merged.rdzv_backend.starts_with("etcd")) {
    plan.notes.push_back(fmt::format(
        "--rdzv_backend {} is treated as c10d: the launcher at --main_process_ip hosts the rendezvous, no etcd server.",
        merged.rdzv_backend));
  }
  if (config == nullptr && launcher == Launcher::multi_gpu && !merged.num_processes) {
    plan.notes.push_back(
        fmt::format("{} GPUs were found: starting one process per GPU; use --num_processes to change it.", machine.gpus));
  }
}

/// Python prefetches nothing in the forward pass unless it is told to. C++ programs prefetch, so they hear only what was given.
void leave_out_python_defaults(LaunchArguments& merged, const Json* config) {
  const LaunchFlag* flag = find_launch_flag("fsdp_forward_prefetch");
  const Json section = config != nullptr ? config->value("fsdp_config", Json()) : Json();
  const bool in_file = section.is_object() && (section.contains(flag->key()) || section.contains("forward_prefetch"));
  if (!in_file && !merged.given.contains(flag->key())) merged.settings.passed_on.erase(flag);
}

/// Turns a plan into one whose only process is `argv`, with `variables` and no rank.
LaunchPlan as_one_command(LaunchPlan plan, std::vector<std::string> argv, Variables variables, const Environment& environment) {
  plan.workers.resize(1);
  plan.output.ranks.resize(1);
  plan.workers.front() = {.rank = 0, .argv = std::move(argv), .variables = std::move(variables)};
  plan.removed_variables.clear();
  plan.machines.reset();
  for (const char* name : kPlaceVariables) {
    if (environment(name) && !plan.workers.front().variables.contains(name)) plan.removed_variables.emplace_back(name);
  }
  return plan;
}

LaunchPlan with_mpi(LaunchPlan plan, const LaunchSettings& merged, const LaunchOptions& options, const Environment& environment,
                    const MachineFacts& machine) {
  const auto mpi = machine.find_mpi();
  if (!mpi) {
    throw UsageError(
        "--mpirun_hostfile is given, but neither mpirun nor mpiexec is on PATH: install Open MPI, Intel MPI or MVAPICH.");
  }
  Variables variables = plan.workers.front().variables;
  for (const std::string name : kPlaceVariables) {
    if (name != "MASTER_ADDR" && name != "MASTER_PORT") variables.erase(name);
  }
  variables.erase("TORCH_NCCL_ASYNC_ERROR_HANDLING");
  const auto argv = mpi_command(*mpi, merged, options, environment, exported_names(variables, machine));
  LaunchPlan with = as_one_command(std::move(plan), argv, std::move(variables), environment);
  with.workers.front().name = mpi->program;
  return with;
}

LaunchPlan on_tpu(LaunchOptions options, const LaunchSettings& merged, const Environment& environment,
                  const MachineFacts& machine) {
  if (!machine.tpu) {
    throw UsageError(
        "--tpu (or distributed_type: XLA in the config file) requires a TPU, but this machine has no XLA device (/dev/accel0).");
  }
  if (merged.tpu_use_cluster) throw UsageError("--tpu_cluster is not supported: use Python's `accelerate launch` for TPU pods.");
  if (merged.no_python) throw UsageError("--no_python cannot be used with --tpu: TPU programs run with Python's torch_xla.");
  Variables variables;
  if (options.mixed_precision == "bf16") variables[merged.downcast_bf16 ? "XLA_DOWNCAST_BF16" : "XLA_USE_BF16"] = "1";
  if (options.debug) variables["ACCELERATE_DEBUG_MODE"] = "true";
  options.num_processes = 1;
  options.num_machines = 1;
  options.machine_rank = 0;
  options.place_lone_process = false;
  const auto argv = worker_command(merged, false, environment);
  return as_one_command(plan_launch(options, environment, machine), argv, std::move(variables), environment);
}

// Python never passes dynamo settings to DeepSpeed's workers. Here they get a backend that was requested.
void leave_out_idle_compiler(Variables& variables) {
  if (variables["ACCELERATE_DYNAMO_BACKEND"] == "NO") {
    std::erase_if(variables, [](const auto& variable) { return variable.first.starts_with("ACCELERATE_DYNAMO_"); });
  }
}

bool is_deepspeed_job(const LaunchSettings& merged, const LaunchOptions& options) {
  return options.num_machines > 1 && merged.deepspeed_multinode_launcher != "standard";
}

LaunchPlan as_deepspeed_job(LaunchOptions options, const LaunchSettings& merged, const Environment& environment,
                            const MachineFacts& machine) {
  if (merged.deepspeed_multinode_launcher == "ssh") {
    throw UsageError("--deepspeed_multinode_launcher ssh starts C++ programs only: choose one of DeepSpeed's own, such as pdsh.");
  }
  const auto argv = deepspeed_command(merged, options);
  options.num_processes = 1;
  options.num_machines = 1;
  options.machine_rank = 0;
  options.place_lone_process = false;
  LaunchPlan plan = plan_launch(options, environment, machine);
  Variables variables = plan.workers.front().variables;
  leave_out_idle_compiler(variables);
  for (const char* name : {"OMP_NUM_THREADS", "ACCELERATE_USE_CPU"}) variables.erase(name);
  plan.notes.emplace_back("the other nodes read their environment from .deepspeed_env, which this launch does not write.");
  return as_one_command(std::move(plan), argv, std::move(variables), environment);
}

LaunchPlan plan_with(Launcher launcher, LaunchOptions options, const LaunchSettings& merged, const Environment& environment,
                     const MachineFacts& machine) {
  if (launcher == Launcher::tpu) return on_tpu(std::move(options), merged, environment, machine);
  options.variables = variables_for(merged, launcher, environment, machine);
  if (launcher == Launcher::deepspeed && is_deepspeed_job(merged, options)) {
    return as_deepspeed_job(std::move(options), merged, environment, machine);
  }
  LaunchPlan plan = plan_launch(options, environment, machine);
  const bool with_places = plan.workers.front().variables.contains("RANK");
  for (WorkerPlan& worker : plan.workers) {
    worker.argv = worker_command(merged, with_places, environment);
    if (launcher == Launcher::deepspeed) leave_out_idle_compiler(worker.variables);
  }
  if (launcher != Launcher::simple || !merged.mpirun_hostfile) return plan;
  return with_mpi(std::move(plan), merged, options, environment, machine);
}

int processes_per_node(const LaunchSettings& merged, const MachineFacts& machine) {
  const std::string& text = *merged.nproc_per_node;
  int count = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (problem == std::errc() && end == text.data() + text.size()) {
    if (count < 1) throw UsageError(fmt::format("--nproc_per_node is {}; at least 1 process is needed.", count));
    return count;
  }
  if (text != "gpu") throw UsageError(fmt::format("--nproc_per_node is '{}'; give an integer, or gpu.", text));
  if (const auto ids = chosen_gpus(merged)) return static_cast<int>(gpus_in(*ids).size());
  if (machine.gpus == 0) throw UsageError("--nproc_per_node is gpu, but no CUDA GPU was found on this machine: give a number.");
  return machine.gpus;
}

/// Of tasks each starts one process: no other number can be asked for.
LaunchArguments without_processes_of_tasks(LaunchArguments arguments, const ClusterPlace& place, const MachineFacts& machine) {
  if (!place.task || !arguments.gave(&LaunchSettings::nproc_per_node)) return arguments;
  const int wanted = processes_per_node(arguments.settings, machine);
  if (wanted != place.task->local_tasks) {
    throw UsageError(fmt::format(
        "--nproc_per_node is {}, but {} has {} tasks on this node, and each starts one process: leave it out, or have one "
        "launcher a node start the processes: `srun --ntasks-per-node=1 accelerate launch --nproc_per_node {} ...`.",
        *arguments.settings.nproc_per_node, place.source, place.task->local_tasks, *arguments.settings.nproc_per_node));
  }
  arguments.given.erase(key_of(&LaunchSettings::nproc_per_node));
  arguments.settings.nproc_per_node.reset();
  return arguments;
}

LaunchArguments merged_with(LaunchArguments arguments, const Json* config, const std::optional<ClusterPlace>& place,
                            std::vector<std::string>& notes) {
  LaunchArguments merged = merge_config(std::move(arguments), config);
  if (place && !merged.settings.mpirun_hostfile) merge_place(merged, *place, notes);
  return merged;
}

// torchrun counts processes per node, --num_processes in total. The number of nodes may be in the config file.
LaunchArguments with_processes_per_node(LaunchArguments arguments, const Json* config, const std::optional<ClusterPlace>& place,
                                        const MachineFacts& machine, std::vector<std::string>& notes) {
  if (place) arguments = without_processes_of_tasks(std::move(arguments), *place, machine);
  if (place && place->processes && !arguments.gave(&LaunchSettings::num_processes) &&
      !arguments.gave(&LaunchSettings::nproc_per_node)) {
    arguments.settings.nproc_per_node = place->processes;
    arguments.given.insert(key_of(&LaunchSettings::nproc_per_node));
  }
  if (!arguments.gave(&LaunchSettings::nproc_per_node)) return merged_with(std::move(arguments), config, place, notes);
  if (arguments.gave(&LaunchSettings::num_processes)) {
    throw UsageError(
        "--nproc_per_node and --num_processes cannot be used together: the first is per machine, the second is the total.");
  }
  arguments.given.insert(key_of(&LaunchSettings::num_processes));  // overrides the config file
  const bool wants_several = arguments.settings.multi_gpu;
  LaunchArguments merged = merged_with(std::move(arguments), config, place, notes);
  const int64_t machines = merged.settings.num_machines.value_or(1);
  const int64_t all = processes_per_node(merged.settings, machine) * machines;
  if (wants_several && all == 1) {
    throw UsageError("--nproc_per_node starts 1 process with --multi_gpu, which needs at least 2.");
  }
  merged.settings.num_processes = static_cast<int>(std::clamp<int64_t>(all, INT_MIN, INT_MAX));
  return merged;
}

}  // namespace

bool uses_default_config(const LaunchSettings& settings) { return !settings.cpu; }

LaunchPlan plan_command(const LaunchArguments& given, const nlohmann::json* config, const Environment& environment,
                        const MachineFacts& facts) {
  if (given.settings.command.empty()) throw UsageError("No program was given. Name it after the flags, then its arguments.");
  check_together(given.settings);
  check_rendezvous(given.settings);
  LaunchArguments asked = merge_config(given, config);
  take_endpoint(asked);
  if (is_remote(asked.settings)) return plan_remote_launch(given, asked.settings, config != nullptr, environment, facts);
  const LaunchArguments arguments = uses_host_file(asked.settings) ? with_rank_of_host_file(given, asked.settings, facts) : given;
  const auto place = place_of(arguments, environment);
  const MachineFacts machine = place ? as_given(facts, *place) : facts;
  std::vector<std::string> notes;
  LaunchArguments merged = with_processes_per_node(arguments, config, place, machine, notes);
  take_endpoint(merged);
  if (!is_python(merged.settings)) leave_out_python_defaults(merged, config);
  const Launcher launcher = launcher_for(merged.settings, config, machine);
  check_gpus(merged, machine);
  LaunchPlan plan = plan_with(launcher, options_of(merged, launcher, environment), merged.settings, environment, machine);
  if (place && place->task && plan.machines && plan.machines->count == place->task->tasks) place_in_task(plan, *place->task);
  plan.notes.insert(plan.notes.begin(), notes.begin(), notes.end());
  add_notes(plan, merged, launcher, config, machine);
  return plan;
}

}  // namespace accelerate::detail
