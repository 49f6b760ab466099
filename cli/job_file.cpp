#include "job_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include <accelerate/core/error.h>
#include "console/flag_reader.h"
#include "core/escaped.h"
#include "hosts/gpu_list.h"
#include "launch/command_plan.h"
#include "launch/launch_merge.h"
#include "launch/plan_text.h"

namespace accelerate::detail::cli {
namespace {

/// What a launch needs of each node.
struct NodeNeeds {
  int nodes = 1;
  int gpus = 0;
  /// None: as many as the cluster gives to a task.
  std::optional<int> cpus = {};
};

std::optional<int> processes_of_each(const LaunchArguments& given, const LaunchSettings& merged, int nodes) {
  if (given.gave(&LaunchSettings::nproc_per_node)) {
    const std::string& text = *merged.nproc_per_node;
    int count = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), count);
    return problem == std::errc() && end == text.data() + text.size() && count > 0 ? std::optional(count) : std::nullopt;
  }
  if (!merged.num_processes) return std::nullopt;
  return std::max(1, *merged.num_processes / nodes);
}

bool is_on_cpu(const LaunchSettings& merged) { return merged.cpu || merged.use_cpu; }

bool asks_for_gpus(const std::string& sbatch) { return sbatch.find("gpu") != sbatch.npos; }

NodeNeeds needs_of(const LaunchArguments& given, const LaunchSettings& merged) {
  NodeNeeds needs = {.nodes = std::max(1, merged.num_machines.value_or(1))};
  const auto processes = processes_of_each(given, merged, needs.nodes);
  const bool on_cpu = is_on_cpu(merged);
  if (!on_cpu && merged.gpu_ids.value_or("all") != "all") {
    needs.gpus = static_cast<int>(gpus_in(*merged.gpu_ids).size());
  } else if (!on_cpu && processes) {
    needs.gpus = *processes;
  } else if (!on_cpu && !asks_for_gpus(merged.sbatch)) {
    throw UsageError(
        "--submit must know how many GPUs each node is to have: give --num_processes or --nproc_per_node with a number, or "
        "--cpu, or ask for them with --sbatch \"--gpus-per-node=8\".");
  }
  if (processes || on_cpu) needs.cpus = processes.value_or(1) * std::max(1, merged.num_cpu_threads_per_process.value_or(1));
  return needs;
}

/// A launch on the first node, planned with what it will find there: what would be refused there is refused before the job waits
/// for its turn.
void check_on_node(const LaunchArguments& arguments, const nlohmann::json* config, const NodeNeeds& needs, bool on_cpu,
                   const Environment& environment) {
  const std::string nodes = std::to_string(needs.nodes);
  const std::map<std::string, std::string> step = {{"SLURM_JOB_ID", "1"},
                                                   {"SLURM_STEP_ID", "0"},
                                                   {"SLURM_NODEID", "0"},
                                                   {"SLURM_PROCID", "0"},
                                                   {"SLURM_LOCALID", "0"},
                                                   {"SLURM_STEP_NUM_NODES", nodes},
                                                   {"SLURM_STEP_NUM_TASKS", nodes},
                                                   {"SLURM_STEP_NODELIST", "node0"},
                                                   {"SLURM_STEP_TASKS_PER_NODE", fmt::format("1(x{})", nodes)}};
  const Environment there = [&](const std::string& name) -> std::optional<std::string> {
    if (const auto found = step.find(name); found != step.end()) return found->second;
    return name.starts_with("SLURM_") || name == "ACCELERATE_LAUNCH_ID" ? std::nullopt : environment(name);
  };
  MachineFacts node;
  // Where --sbatch asks for them, their number is not known here.
  node.gpus = on_cpu ? 0 : std::max(1, needs.gpus);
  node.reserve_port = [](int) { return true; };
  node.reserve_free_port = [] { return 29500; };
  node.has_fp8 = [] { return true; };
  plan_command(arguments, config, there, node);
}

std::string job_name(const LaunchSettings& settings) {
  std::string name = settings.command.front();
  name = name.substr(name.rfind('/') + 1);
  const auto odd = [](unsigned char c) { return std::isalnum(c) == 0 && c != '.' && c != '-' && c != '_'; };
  std::replace_if(name.begin(), name.end(), odd, '_');
  return name;
}

/// The command line without what is for submitting.
std::string launch_line(const std::vector<std::string>& line) {
  std::string text;
  const auto add = [&](const std::string& word) { text += " " + shell_quoted(word); };
  const auto operands = read_flags(launch_flag_table(), line, [&](const Flag& flag, const std::vector<std::string>& values) {
                          const std::string name = flag.name;
                          if (name == "submit" || name == "sbatch" || name == "dry_run") return;
                          const bool joined = !values.empty() && values.front().starts_with("--");
                          add("--" + name + (joined ? "=" + values.front() : ""));
                          if (!values.empty() && !joined) add(values.front());
                        }).operands;
  if (operands.front().starts_with('-')) add("--");
  for (const std::string& word : operands) add(word);
  return text;
}

void check_options(const LaunchArguments& arguments) {
  for (const SettingMember& member :
       {SettingMember(&LaunchSettings::machine_rank), SettingMember(&LaunchSettings::main_process_ip)}) {
    if (arguments.gave(member))
      throw UsageError(
          fmt::format("--{} cannot be used with --submit: each launcher of the job learns it from Slurm.", key_of(member)));
  }
  const std::string& sbatch = arguments.settings.sbatch;
  if (escaped(sbatch) != sbatch)
    throw UsageError(fmt::format("--sbatch is '{}'; give options of sbatch on one line.", escaped(sbatch)));
  if (!sbatch.empty() && sbatch.front() != '-')
    throw UsageError(
        fmt::format("--sbatch is '{}'; give options of sbatch, such as \"--time=2:00:00 --partition=gpu\".", sbatch));
}

}  // namespace

std::string slurm_job_file(const LaunchArguments& arguments, const nlohmann::json* config, const std::vector<std::string>& line,
                           const std::string& launcher, const Environment& environment) {
  if (arguments.settings.command.empty()) throw UsageError("No program was given. Name it after the flags, then its arguments.");
  const LaunchSettings merged = merge_config(arguments, config).settings;
  check_options(arguments);
  const NodeNeeds needs = needs_of(arguments, merged);
  check_on_node(arguments, config, needs, is_on_cpu(merged), environment);
  std::string text = "#!/bin/bash\n";
  const auto option = [&](const std::string& words) { text += "#SBATCH " + words + "\n"; };
  option("--job-name=" + job_name(merged));
  option(fmt::format("--nodes={}", needs.nodes));
  option("--ntasks-per-node=1");
  if (needs.gpus > 0) option(fmt::format("--gpus-per-node={}", needs.gpus));
  if (needs.cpus) option(fmt::format("--cpus-per-task={}", *needs.cpus));
  option("--output=%x-%j.out");
  option("--open-mode=append");
  if (merged.max_restarts > 0) {
    option("--signal=USR1@60");
    option("--requeue");
  }
  // The last one of an option counts.
  if (!merged.sbatch.empty()) option(merged.sbatch);
  text += "\nsrun --kill-on-bad-exit=1";
  // srun does not take it over by itself.
  if (needs.cpus) text += " --cpus-per-task=\"$SLURM_CPUS_PER_TASK\"";
  return text + " " + shell_quoted(launcher) + " launch" + launch_line(line) + "\n";
}

}  // namespace accelerate::detail::cli
