#include "elastic/cluster_place.h"

#include <fmt/format.h>

#include <array>

#include <accelerate/core/error.h>
#include "core/slurm_step.h"

namespace accelerate::detail {
namespace {

/// The number that Slurm gives to the step of a shell that salloc starts on a node (LaunchParameters=use_interactive_step).
constexpr const char* kInteractiveStep = "4294967290";

/// mpirun may start its own agents as a Slurm step: then Slurm's ranks are those of the agents, and not of what they start.
bool is_started_by_mpi(const SlurmStep& step, const Environment& environment) {
  struct MpiVariables {
    const char *rank, *size;
  };
  constexpr std::array kMpi = {MpiVariables{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                               MpiVariables{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"}, MpiVariables{"PMI_RANK", "PMI_SIZE"}};
  for (const MpiVariables& names : kMpi) {
    const auto size = integer_from(environment, {names.size});
    if (size && (size != step.tasks || integer_from(environment, {names.rank}) != step.task)) return true;
  }
  return false;
}

void take_resources(ClusterPlace& place, const Environment& environment) {
  place.gpus = integer_from(environment, {"SLURM_GPUS_ON_NODE"});
  place.cpus = integer_from(environment, {"SLURM_CPUS_ON_NODE"});
}

std::string nodes_text(int nodes) { return fmt::format("{} node{}", nodes, nodes == 1 ? "" : "s"); }

/// In a batch script, or in a shell that belongs to an allocation: a launch there is on one machine.
ClusterPlace beside_steps(const Environment& environment, const std::string& job) {
  const int nodes = integer_from(environment, {"SLURM_JOB_NUM_NODES", "SLURM_NNODES"}).value_or(1);
  ClusterPlace place = {.source = "Slurm job " + job, .machines = 1, .machine_rank = 0, .complete = true};
  take_resources(place, environment);
  constexpr const char* kAdvice = "`srun --ntasks-per-node=1 accelerate launch ...` runs on all of them";
  if (!environment("SLURM_NODEID")) {
    place.note = fmt::format("this shell has the Slurm allocation {} ({}), but may run on another host: {}.", job,
                             nodes_text(nodes), kAdvice);
  } else if (nodes > 1) {
    place.note = fmt::format("this Slurm job has {}, and this launch is on one of them: {}.", nodes_text(nodes), kAdvice);
  }
  return place;
}

ClusterPlace in_step(const SlurmStep& step, const Environment& environment) {
  ClusterPlace place = {.source = fmt::format("Slurm step {}.{}", environment("SLURM_JOB_ID").value_or("?"),
                                              environment("SLURM_STEP_ID").value_or("?")),
                        .machines = step.nodes,
                        .machine_rank = step.node,
                        .run_id = step.name,
                        .complete = true};
  take_resources(place, environment);
  if (step.tasks > 1 && (step.nodes == 1 || !step.first_host.empty()))
    place.address = step.nodes == 1 ? "127.0.0.1" : step.first_host;
  if (step.tasks > 1) place.port = step.port;
  if (step.tasks > step.nodes && step.task && step.local_task)
    place.task = {.rank = *step.task,
                  .tasks = step.tasks,
                  .local_rank = *step.local_task,
                  .local_tasks = step.local_tasks.value_or(step.tasks),
                  .machines = step.nodes,
                  .machine_rank = step.node};
  return place;
}

std::optional<ClusterPlace> slurm_place(const Environment& environment) {
  const auto job = environment("SLURM_JOB_ID");
  if (!job) return std::nullopt;
  const auto step = read_slurm_step(environment);
  if (!step || environment("SLURM_STEP_ID") == kInteractiveStep) return beside_steps(environment, *job);
  if (is_started_by_mpi(*step, environment)) return std::nullopt;
  // A terminal belongs to one task; the others have nothing to read, and end.
  if (environment("SLURM_PTY_PORT") && step->nodes > 1) return beside_steps(environment, *job);
  return in_step(*step, environment);
}

std::optional<std::string> text_of(const Environment& environment, const char* name) {
  auto text = environment(name);
  return text && !text->empty() ? text : std::nullopt;
}

int nodes_in(const std::string& text, const std::string& whole) {
  const auto found = integer_from([&](const std::string&) { return std::optional(text); }, {"PET_NNODES"});
  if (!found || *found < 1) throw ConfigError("PET_NNODES=" + whole + ": expected a number of nodes, or MIN:MAX.");
  return *found;
}

/// torchrun reads the defaults of its flags from variables, and the training operator for Kubernetes sets these.
std::optional<ClusterPlace> torchrun_place(const Environment& environment) {
  ClusterPlace place = {.source = "PET_NNODES"};
  if (const auto nodes = text_of(environment, "PET_NNODES")) {
    const size_t colon = nodes->find(':');
    place.machines = nodes_in(colon == nodes->npos ? *nodes : nodes->substr(colon + 1), *nodes);
    if (colon != nodes->npos) place.min_machines = nodes_in(nodes->substr(0, colon), *nodes);
  }
  place.machine_rank = integer_from(environment, {"PET_NODE_RANK", "JOB_COMPLETION_INDEX"});
  place.address = text_of(environment, "PET_MASTER_ADDR");
  place.port = integer_from(environment, {"PET_MASTER_PORT"});
  place.endpoint = text_of(environment, "PET_RDZV_ENDPOINT");
  place.backend = text_of(environment, "PET_RDZV_BACKEND");
  place.processes = text_of(environment, "PET_NPROC_PER_NODE");
  if (place.processes == "auto") place.processes.reset();  // one for each GPU, which is the default
  place.max_restarts = integer_from(environment, {"PET_MAX_RESTARTS"});
  place.rendezvous_id = text_of(environment, "PET_RDZV_ID");
  if (place.rendezvous_id == "none") place.rendezvous_id.reset();
  const bool told = place.machines || place.machine_rank || place.address || place.port || place.endpoint || place.backend ||
                    place.processes || place.max_restarts || place.rendezvous_id;
  return told ? std::optional(place) : std::nullopt;
}

}  // namespace

std::optional<ClusterPlace> read_cluster_place(const Environment& environment) {
  auto place = slurm_place(environment);
  return place ? place : torchrun_place(environment);
}

}  // namespace accelerate::detail
