#include <accelerate/launch/launch_plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include <accelerate/core/error.h>
#include "hosts/gpu_list.h"
#include "launch/place_variables.h"

namespace accelerate {

using namespace detail;
namespace {

constexpr int kDefaultPort = 29500;
constexpr const char* kLoopback = "127.0.0.1";
constexpr double kLongestGrace = 1e6;
constexpr int kMostMachines = 1 << 14;
constexpr int kMostProcesses = 1 << 16;  // per machine: more is a typo, and the plan alone would exhaust memory

void check_joining(const LaunchOptions& options) {
  const int most = options.num_machines, fewest = options.min_machines > 0 ? options.min_machines : most;
  if (fewest > most) {
    throw UsageError(fmt::format("--num_machines is {}:{}; give the fewest machines first, then the most.", fewest, most));
  }
  if (fewest < most && !options.dynamic_join) {
    throw UsageError(
        fmt::format("--num_machines is {}:{}, but machines that have a rank cannot be fewer: use --rdzv_backend c10d without "
                    "--machine_rank.",
                    fewest, most));
  }
  if (fewest < most && options.num_processes && !options.processes_per_machine) {
    throw UsageError(
        fmt::format("--num_processes is {} with --num_machines {}:{}; the total depends on how many machines join: give "
                    "--nproc_per_node.",
                    *options.num_processes, fewest, most));
  }
  if (options.heterogeneous && !options.processes_per_machine) {
    throw UsageError("--heterogeneous is given without --nproc_per_node: say how many processes this machine starts.");
  }
  if (!(options.last_call >= 0 && options.last_call <= kLongestGrace)) {
    throw UsageError(fmt::format("last_call_timeout is {}; give seconds from 0 to {}.", options.last_call, kLongestGrace));
  }
}

void check_machines(const LaunchOptions& options) {
  if (options.num_machines < 1) {
    throw UsageError(fmt::format("--num_machines is {}; at least 1 machine is needed.", options.num_machines));
  }
  if (options.num_machines > kMostMachines) {
    throw UsageError(fmt::format("--num_machines is {}; the maximum is {}.", options.num_machines, kMostMachines));
  }
  if (options.machine_rank < 0 || options.machine_rank >= options.num_machines) {
    throw UsageError(fmt::format("--machine_rank is {} with --num_machines {}; machines are numbered from 0 to {}.",
                                 options.machine_rank, options.num_machines, options.num_machines - 1));
  }
  if (options.num_machines == 1) return;
  check_joining(options);
  if (!options.processes_per_machine && options.num_processes.value_or(options.num_machines) % options.num_machines != 0) {
    throw UsageError(
        fmt::format("--num_processes is {} with --num_machines {}; it is the total over all machines, and each runs the "
                    "same number of processes: give a multiple of {}.",
                    *options.num_processes, options.num_machines, options.num_machines));
  }
  if (options.main_process_ip.value_or("").empty()) {
    throw UsageError(
        fmt::format("--main_process_ip is missing with --num_machines {}; give the address of machine 0.", options.num_machines));
  }
  if (options.main_process_port == 0) {
    throw UsageError(
        fmt::format("--main_process_port is 0 with --num_machines {}; each machine would pick a different port: "
                    "give the same one on all of them.",
                    options.num_machines));
  }
}

void check(const LaunchOptions& options) {
  if (options.num_processes && *options.num_processes < 1) {
    throw UsageError(fmt::format("--num_processes is {}; at least 1 process is needed.", *options.num_processes));
  }
  if (options.num_processes && *options.num_processes / std::max(1, options.num_machines) > kMostProcesses) {
    throw UsageError(
        fmt::format("--num_processes is {}; the maximum per machine is {}.", *options.num_processes, kMostProcesses));
  }
  const int port = options.main_process_port.value_or(0);
  if (port < 0 || port > 65535) {
    throw UsageError(fmt::format("--main_process_port is {}; give a port from 1 to 65535, or 0 for any free one.", port));
  }
  if (options.num_cpu_threads_per_process && *options.num_cpu_threads_per_process < 1) {
    throw UsageError(
        fmt::format("--num_cpu_threads_per_process is {}; at least 1 thread is needed.", *options.num_cpu_threads_per_process));
  }
  constexpr std::array<std::string_view, 4> precisions = {"no", "fp16", "bf16", "fp8"};
  if (std::find(precisions.begin(), precisions.end(), options.mixed_precision) == precisions.end()) {
    throw UsageError(fmt::format("--mixed_precision is '{}'; choose no, fp16, bf16 or fp8.", options.mixed_precision));
  }
  if (options.max_restarts < 0) {
    throw UsageError(fmt::format("--max_restarts is {}; give 0 or more.", options.max_restarts));
  }
  if (!(options.grace_period >= 0 && options.grace_period <= kLongestGrace)) {
    throw UsageError(fmt::format("--grace_period is {}; give seconds from 0 to {}.", options.grace_period, kLongestGrace));
  }
  for (const std::string& id : gpus_in(options.gpu_ids)) {
    if (!names_a_gpu(id)) {
      throw UsageError(fmt::format("--gpu_ids is '{}'; give GPU numbers separated by commas, or all.", options.gpu_ids));
    }
  }
  check_machines(options);
}

// On this machine.
int count_processes(const LaunchOptions& options, const MachineFacts& machine) {
  if (options.processes_per_machine) return *options.processes_per_machine;
  if (options.num_processes) return *options.num_processes / options.num_machines;
  if (options.cpu) return 1;
  if (options.gpu_ids != "all") return std::max(1, static_cast<int>(gpus_in(options.gpu_ids).size()));
  return std::max(1, machine.gpus);
}

int choose_port(const LaunchOptions& options, const MachineFacts& machine, std::vector<std::string>& notes) {
  const int wanted = options.main_process_port.value_or(kDefaultPort);
  // Rank 0 listens on machine 0; the other machines cannot know which ports are free there.
  if (options.machine_rank != 0 || options.dynamic_join) return wanted;
  if (wanted != 0 && machine.reserve_port(wanted)) return wanted;
  if (options.num_machines > 1) {
    throw UsageError(fmt::format(
        "Port {} (--main_process_port) is not available; another program may be listening on it. All machines must use "
        "the same port: give one that is free on this machine, the same on all of them.",
        wanted));
  }
  const int found = machine.reserve_free_port();
  // The default port was not requested, so replacing it needs no note.
  if (wanted != 0 && options.main_process_port) {
    notes.push_back(
        fmt::format("Port {} (--main_process_port) is not available, another program may be listening on it: "
                    "using port {} instead.",
                    wanted, found));
  }
  return found;
}

int choose_threads(const LaunchOptions& options, const Environment& environment, const MachineFacts& machine,
                   std::vector<std::string>& notes) {
  if (options.num_cpu_threads_per_process) return *options.num_cpu_threads_per_process;
  const int inherited = integer_from(environment, {"OMP_NUM_THREADS"}).value_or(0);
  if (inherited > 0) return inherited;
  // As in Python: the cores are divided only when --num_processes was given.
  if (!options.cpu || !options.num_processes) return 1;
  const auto under_mpi =
      integer_from(environment, {"MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"});
  const int threads = machine.physical_cores / std::max(1, under_mpi.value_or(*options.num_processes / options.num_machines));
  if (threads <= 1) return 1;
  notes.push_back(
      fmt::format("Each process gets {} CPU threads, its share of {} cores; "
                  "use --num_cpu_threads_per_process to change it.",
                  threads, machine.physical_cores));
  return threads;
}

std::map<std::string, std::string> common_variables(const LaunchOptions& options, int processes, int threads) {
  std::map<std::string, std::string> variables = options.variables;
  variables.insert({{"ACCELERATE_MIXED_PRECISION", options.mixed_precision},
                    {"ACCELERATE_DYNAMO_BACKEND", "NO"},
                    {"ACCELERATE_DYNAMO_MODE", "default"},
                    {"ACCELERATE_DYNAMO_USE_FULLGRAPH", "False"},
                    {"ACCELERATE_DYNAMO_USE_DYNAMIC", "False"},
                    {"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "False"},
                    {"OMP_NUM_THREADS", std::to_string(threads)}});
  if (options.gpu_ids != "all") variables.emplace("CUDA_VISIBLE_DEVICES", options.gpu_ids);
  if (options.enable_cpu_affinity) variables.emplace("ACCELERATE_CPU_AFFINITY", "1");
  if (options.debug) variables.emplace("ACCELERATE_DEBUG_MODE", "true");
  if (options.cpu) {
    variables.insert({{"ACCELERATE_USE_CPU", "True"}, {"KMP_AFFINITY", "granularity=fine,compact,1,0"}, {"KMP_BLOCKTIME", "1"}});
  } else if (processes == 1 && !options.place_lone_process) {
    // Python sets False for a single process and nothing for several; programs may depend on it.
    variables.emplace("ACCELERATE_USE_CPU", "False");
  }
  return variables;
}

std::map<std::string, std::string> place_variables(const LaunchOptions& options, int local_rank, int local_processes, int port) {
  const std::string rank = std::to_string(options.machine_rank * local_processes + local_rank);
  const std::string processes = std::to_string(options.num_machines * local_processes);
  return {{"RANK", rank},
          {"LOCAL_RANK", std::to_string(local_rank)},
          {"ROLE_RANK", rank},
          {"GROUP_RANK", std::to_string(options.machine_rank)},
          {"WORLD_SIZE", processes},
          {"LOCAL_WORLD_SIZE", std::to_string(local_processes)},
          {"ROLE_WORLD_SIZE", processes},
          {"GROUP_WORLD_SIZE", std::to_string(options.num_machines)},
          {"ROLE_NAME", options.role},
          {"MASTER_ADDR", options.num_machines > 1 ? *options.main_process_ip : kLoopback},
          {"MASTER_PORT", std::to_string(port)},
          {"TORCHELASTIC_RESTART_COUNT", "0"},  // the supervisor increments it
          {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts)},
          {"TORCHELASTIC_RUN_ID", options.rendezvous_id.empty() ? "none" : options.rendezvous_id},
          {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
          // This launcher hosts no store: rank 0 does, and this tells it to.
          {"TORCHELASTIC_USE_AGENT_STORE", "False"}};
}

}  // namespace

namespace {

// The CUDA index of the GPU that a process uses, if known.
std::optional<int> gpu_of(const LaunchOptions& options, int local_rank, const Environment& environment,
                          const MachineFacts& machine) {
  if (options.cpu || machine.gpus == 0) return std::nullopt;
  const std::string ids = options.gpu_ids != "all" ? options.gpu_ids : environment("CUDA_VISIBLE_DEVICES").value_or("all");
  if (ids == "all") return local_rank % machine.gpus;
  const auto listed = gpus_in(ids);
  return listed.empty() ? std::nullopt : gpu_number(listed[static_cast<size_t>(local_rank) % listed.size()]);
}

/// A job is known by its run id, or else by its program.
MachineSettings machines_of(const LaunchOptions& options, int processes, const Environment& environment,
                            const MachineFacts& machine) {
  const std::string program = options.command.empty() ? "" : std::filesystem::path(options.command.front()).filename().string();
  const auto milliseconds = [](double seconds) {
    return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
  };
  return {.rank = options.dynamic_join ? std::nullopt : std::optional(options.machine_rank),
          .count = options.num_machines,
          .least = options.min_machines,
          .address = *options.main_process_ip,
          .port = options.main_process_port.value_or(kDefaultPort),
          .hosts = options.hosts_rendezvous,
          .job = !options.rendezvous_id.empty()
                     ? options.rendezvous_id
                     : environment("ACCELERATE_RUN_ID").value_or(options.run_id.empty() ? program : options.run_id),
          .processes = processes,
          .heterogeneous = options.heterogeneous,
          .max_restarts = options.max_restarts,
          .patience = milliseconds(options.join_timeout),
          .last_call = milliseconds(options.last_call),
          .reserve_port = machine.reserve_free_port,
          .environment = environment};
}

void pin_workers(LaunchPlan& plan, const LaunchOptions& options, const Environment& environment, const MachineFacts& machine) {
  const CpuTopology topology = machine.cpu_topology();
  const int processes = static_cast<int>(plan.workers.size());
  for (int local_rank = 0; local_rank < processes; ++local_rank) {
    plan.workers[static_cast<size_t>(local_rank)].cpus =
        cpus_for(topology, local_rank, processes, gpu_of(options, local_rank, environment, machine));
  }
}

}  // namespace

LaunchPlan plan_launch(const LaunchOptions& options, const Environment& environment, const MachineFacts& machine) {
  check(options);
  LaunchPlan plan = {.max_restarts = options.max_restarts};
  plan.signals_from_stdin = environment(kStdinSignalsVariable) == "1";
  plan.grace_period = std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(options.grace_period));
  const int local_processes = count_processes(options, machine);
  const int processes = local_processes * options.num_machines;
  plan.output = plan_output(options.tee, options.log_dir, options.role, options.machine_rank * local_processes, local_processes,
                            environment);
  plan.output.quiet = options.quiet;
  const int threads = choose_threads(options, environment, machine, plan.notes);
  auto common = common_variables(options, processes, threads);
  if (!options.run_id.empty() && !environment("ACCELERATE_RUN_ID")) common.emplace("ACCELERATE_RUN_ID", options.run_id);
  const bool placed = processes > 1 || options.place_lone_process;
  const int port = placed ? choose_port(options, machine, plan.notes) : 0;
  for (int local_rank = 0; local_rank < local_processes; ++local_rank) {
    const int rank = options.machine_rank * local_processes + local_rank;
    WorkerPlan worker = {.rank = rank, .argv = options.command, .variables = common};
    if (placed) {
      worker.variables.merge(place_variables(options, local_rank, local_processes, port));
      if (!environment("TORCH_NCCL_ASYNC_ERROR_HANDLING")) worker.variables["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1";
    } else if (options.max_restarts > 0) {
      worker.variables.insert(
          {{"TORCHELASTIC_RESTART_COUNT", "0"}, {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts)}});
    }
    plan.workers.push_back(std::move(worker));
  }
  if (options.num_machines > 1) plan.machines = machines_of(options, local_processes, environment, machine);
  if (options.enable_cpu_affinity) pin_workers(plan, options, environment, machine);
  for (const char* name : kPlaceVariables) {
    if (environment(name) && !plan.workers.front().variables.contains(name)) plan.removed_variables.emplace_back(name);
  }
  return plan;
}

}  // namespace accelerate
