#include "launch/launch_merge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <climits>

#include <accelerate/core/error.h>
#include <accelerate/core/launch_environment.h>
#include "config/python_text.h"
#include "launch/launch_flags.h"
#include "launch/watchdog.h"
#include "launch/worker_command.h"

namespace accelerate::detail {
namespace {

using Json = nlohmann::json;

constexpr std::array kParadigms = {&LaunchSettings::multi_gpu,     &LaunchSettings::tpu,      &LaunchSettings::tpu_use_cluster,
                                   &LaunchSettings::use_deepspeed, &LaunchSettings::use_fsdp, &LaunchSettings::use_megatron_lm};

/// Sections whose keys may lack the prefix of the flags.
struct SectionPrefix {
  const char* section;
  const char* known_by;
  const char* prefix;
};
constexpr std::array kSectionPrefixes = {SectionPrefix{"fsdp_config", "fsdp", "fsdp_"},
                                         SectionPrefix{"fp8_config", "fp8", "fp8_"},
                                         SectionPrefix{"dynamo_config", "dynamo_", "dynamo_"}};

Json member(const Json& config, const std::string& key) { return config.contains(key) ? config[key] : Json(); }

void take_paradigm(LaunchSettings& settings, const Json& config) {
  if (std::any_of(kParadigms.begin(), kParadigms.end(), [&](auto paradigm) { return settings.*paradigm; })) return;
  const Json named = member(config, "distributed_type");
  const std::string type = named.is_string() ? named.get<std::string>() : "NO";
  settings.use_deepspeed = type == "DEEPSPEED";
  settings.multi_gpu = type.starts_with("MULTI_") && type != "MULTI_CPU";
  settings.tpu = type == "XLA";
  settings.use_fsdp = type == "FSDP";
  settings.use_megatron_lm = type == "MEGATRON_LM";
  settings.use_parallelism_config = !member(config, "parallelism_config").empty();
}

// Files may have numbers and flags in quotes.
Json as_kind(const LaunchFlag& flag, const Json& value) {
  const std::string text = python_str(value);
  if (!flag.takes_value())
    return value.is_boolean() ? value : Json(parse_flag(text, fmt::format("{} in the config file", flag.name)));
  if (flag.kind == FlagKind::number && value.is_number()) return value;
  if (flag.kind == FlagKind::number)
    throw ConfigError(fmt::format("{} in the config file is {}; expected a number.", flag.name, value.dump()));
  if (flag.kind != FlagKind::integer) return text;
  if (value.is_number_integer() && value >= INT_MIN && value <= INT_MAX) return value;
  if (value.is_string()) {
    const Json number = Json::parse(text, nullptr, false);
    if (number.is_number_integer()) return as_kind(flag, number);
  }
  throw ConfigError(fmt::format("{} in the config file is {}; expected an integer.", flag.name, value.dump()));
}

void take_top_keys(LaunchArguments& arguments, const Json& config) {
  for (const LaunchFlag& flag : launch_flags()) {
    if (!flag.top_key || arguments.given.contains(flag.key())) continue;
    const Json value = member(config, flag.key());
    if (!value.is_null()) set_value(arguments.settings, flag, as_kind(flag, value));
  }
  const Json use_cpu = member(config, "use_cpu");
  arguments.settings.use_cpu = !use_cpu.is_null() && parse_flag(python_str(use_cpu), "use_cpu in the config file");
}

std::string key_in_section(const std::string& section, const std::string& key) {
  for (const SectionPrefix& row : kSectionPrefixes) {
    if (section == row.section && !key.starts_with(row.known_by)) return row.prefix + key;
  }
  return key;
}

// Values that are only passed on keep their type. A switch is on only for `true`, and a file name must be a string.
void take_section_key(LaunchSettings& settings, const std::string& key, const Json& value) {
  const LaunchFlag* flag = flag_of_key(key);
  if (flag == nullptr) {
    settings.file_keys[key] = value;
  } else if (flag->holds_any_kind()) {
    set_value(settings, *flag, value);
  } else if (!flag->takes_value()) {
    set_value(settings, *flag, value == true);
  } else if (flag->kind != FlagKind::file || value.is_string()) {
    set_value(settings, *flag, as_kind(*flag, value));
  }
}

void take_sections(LaunchArguments& arguments, const Json& config) {
  for (const FlagGroupInfo& group : launch_flag_groups()) {
    if (group.section == nullptr) continue;
    const Json section = member(config, group.section);
    if (!section.is_object()) continue;
    for (const auto& [key, value] : section.items()) {
      const std::string full = key_in_section(group.section, key);
      if (!arguments.given.contains(full) && !value.is_null()) take_section_key(arguments.settings, full, value);
    }
  }
}

std::string deepspeed_fields(const LaunchArguments& arguments, const Json& config) {
  std::vector<std::string> names;
  const Json section = member(config, "deepspeed_config");
  if (section.is_object()) {
    for (const auto& [key, value] : section.items()) names.push_back(key);
  }
  if (!arguments.gave(&LaunchSettings::mixed_precision) && !member(config, "mixed_precision").is_null()) {
    names.emplace_back("mixed_precision");
  }
  return fmt::format("{}", fmt::join(names, ","));
}

/// Whether the command line says itself which of the machines this is, in place of a scheduler that has put it elsewhere.
bool is_placed_by_hand(const LaunchArguments& arguments, const ClusterPlace& place) {
  if (!place.complete) return false;
  const bool number = arguments.gave(&LaunchSettings::num_machines), rank = arguments.gave(&LaunchSettings::machine_rank),
             address = arguments.gave(&LaunchSettings::main_process_ip);
  if (place.machines == 1 && !place.task) return number || rank || address;
  const int given = arguments.settings.num_machines.value_or(1);
  if (!number || given == place.machines) return false;
  if (given == 1 || (rank && address)) return true;
  throw UsageError(fmt::format(
      "--num_machines is {}, but {} has {} nodes: leave it out, or give --machine_rank and --main_process_ip as well.", given,
      place.source, *place.machines));
}

/// A launcher of several machines runs on each of them already, and DeepSpeed's own would start them once more.
void note_job(LaunchArguments& arguments, const ClusterPlace& place) {
  LaunchSettings& settings = arguments.settings;
  if (place.complete) settings.run_id = place.run_id;
  // Who has a rank is not numbered as it joins, whatever the file says.
  if (place.complete && (place.task || !arguments.gave(&LaunchSettings::rdzv_backend))) settings.rdzv_backend = "static";
  if (settings.use_deepspeed && !settings.deepspeed_multinode_launcher && is_python(settings))
    settings.deepspeed_multinode_launcher = "standard";
}

void follow_machines(LaunchArguments& arguments, const ClusterPlace& place, std::vector<std::string>& notes) {
  LaunchSettings& settings = arguments.settings;
  const bool in_file = settings.num_processes && !arguments.gave(&LaunchSettings::num_processes);
  if (!in_file || !place.machines || arguments.gave(&LaunchSettings::num_machines)) return;
  const int machines = std::max(1, settings.num_machines.value_or(1)), processes = *settings.num_processes;
  if (machines == *place.machines) return;
  const int of_each = std::max(1, processes / machines);
  settings.num_processes = of_each * *place.machines;
  notes.push_back(fmt::format("the config file has num_processes {} for num_machines {}: {} of {} {} {} each, {} in all.",
                              processes, machines,
                              *place.machines == 1 ? "the one machine" : fmt::format("the {} machines", *place.machines),
                              place.source, *place.machines == 1 ? "starts" : "start", of_each, *settings.num_processes));
}

/// Launchers of tasks are to each other as those of machines, and each starts one process.
void merge_task(LaunchArguments& arguments, const ClusterPlace& place) {
  LaunchSettings& settings = arguments.settings;
  const ClusterTask& task = *place.task;
  if (arguments.gave(&LaunchSettings::num_processes) && settings.num_processes != task.tasks) {
    throw UsageError(fmt::format(
        "--num_processes is {}, but {} has {} tasks, and each starts one process: leave it out, or have the launchers start "
        "the processes, one launcher a node: `srun --ntasks-per-node=1 accelerate launch --num_processes {} ...`.",
        *settings.num_processes, place.source, task.tasks, *settings.num_processes));
  }
  settings.num_processes = settings.num_machines = task.tasks;
  settings.machine_rank = task.rank;
  if (!arguments.gave(&LaunchSettings::main_process_ip)) settings.main_process_ip = place.address;
  if (!arguments.gave(&LaunchSettings::main_process_port)) settings.main_process_port = place.port;
  note_job(arguments, place);
}

}  // namespace

LaunchArguments merge_config(LaunchArguments arguments, const nlohmann::json* config) {
  LaunchSettings& settings = arguments.settings;
  settings.use_cpu = settings.cpu;
  if (config == nullptr) return arguments;
  const Json compute_environment = member(*config, "compute_environment");
  if (compute_environment == "AMAZON_SAGEMAKER") {
    throw UsageError(
        "The config file is for Amazon SageMaker (compute_environment: AMAZON_SAGEMAKER), which only Python's `accelerate "
        "launch` "
        "supports. To run on this machine, choose another file with --config_file, or run `accelerate config`.");
  }
  take_paradigm(settings, *config);
  take_top_keys(arguments, *config);
  take_sections(arguments, *config);
  settings.deepspeed_fields = deepspeed_fields(arguments, *config);
  if (!settings.gpu_ids) settings.gpu_ids = "all";
  if (settings.num_processes == -1 && !arguments.gave(&LaunchSettings::num_processes)) {
    throw UsageError("The config file does not set the number of processes (num_processes is -1): give --num_processes.");
  }
  return arguments;
}

std::optional<ClusterPlace> place_of(const LaunchArguments& arguments, const Environment& environment) {
  const bool apart = arguments.settings.standalone || arguments.settings.mpirun_hostfile || arguments.settings.tpu;
  return apart || environment(kLaunchMarkVariable) ? std::nullopt : read_cluster_place(environment);
}

MachineFacts as_given(MachineFacts machine, const ClusterPlace& place) {
  machine.gpus = std::min(machine.gpus, place.gpus.value_or(machine.gpus));
  machine.physical_cores = std::min(machine.physical_cores, place.cpus.value_or(machine.physical_cores));
  if (place.task) machine.physical_cores = std::max(1, machine.physical_cores / place.task->local_tasks);
  return machine;
}

void merge_place(LaunchArguments& arguments, const ClusterPlace& place, std::vector<std::string>& notes) {
  if (is_placed_by_hand(arguments, place)) return;
  if (!place.note.empty()) notes.push_back(place.note);
  if (place.task) return merge_task(arguments, place);
  follow_machines(arguments, place, notes);
  LaunchSettings& settings = arguments.settings;
  const auto take = [&](auto LaunchSettings::*member, const auto& value) {
    if (value && !arguments.gave(member)) settings.*member = *value;
  };
  if (!arguments.gave(&LaunchSettings::num_machines)) settings.min_machines = place.min_machines;
  take(&LaunchSettings::num_machines, place.machines);
  take(&LaunchSettings::main_process_ip, place.address);
  take(&LaunchSettings::main_process_port, place.port);
  take(&LaunchSettings::max_restarts, place.max_restarts);
  take(&LaunchSettings::rdzv_backend, place.backend);
  take(&LaunchSettings::rdzv_id, place.rendezvous_id);
  const bool at_endpoint = arguments.gave(&LaunchSettings::main_process_ip) || arguments.gave(&LaunchSettings::main_process_port);
  if (!at_endpoint) take(&LaunchSettings::rdzv_endpoint, place.endpoint);
  const bool several = settings.num_machines.value_or(1) > 1;
  if (several || place.machines) take(&LaunchSettings::machine_rank, place.machine_rank);
  if (several && place.machines && !settings.machine_rank && settings.rdzv_backend == "static")
    throw UsageError(
        fmt::format("{} says {} machines, but nothing says which of them this is: set PET_NODE_RANK, or give --machine_rank.",
                    place.source, *place.machines));
  if (several) note_job(arguments, place);
}

}  // namespace accelerate::detail
