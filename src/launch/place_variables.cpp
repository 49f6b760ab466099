#include "launch/place_variables.h"

#include <string>

namespace accelerate::detail {

void place_in_round(WorkerPlan& worker, int local_rank, const Round& round, const MachineSettings& machines) {
  worker.rank = round.first_rank + local_rank;
  const std::string rank = std::to_string(worker.rank), size = std::to_string(round.world_size);
  auto& variables = worker.variables;
  for (const char* name : {"RANK", "ROLE_RANK"}) variables[name] = rank;
  for (const char* name : {"WORLD_SIZE", "ROLE_WORLD_SIZE"}) variables[name] = size;
  variables["MASTER_PORT"] = std::to_string(round.port);
  // Without these gloo listens where the host's name leads, which is often its loopback interface, and NCCL takes the first one.
  if (!round.interface.empty()) {
    if (!machines.environment("GLOO_SOCKET_IFNAME")) variables["GLOO_SOCKET_IFNAME"] = round.interface;
    if (!machines.environment("NCCL_SOCKET_IFNAME")) variables["NCCL_SOCKET_IFNAME"] = "=" + round.interface;
  }
  if (machines.shares_machine) return;
  variables["GROUP_RANK"] = std::to_string(round.machine);
  variables["GROUP_WORLD_SIZE"] = std::to_string(round.machines);
}

void place_in_task(LaunchPlan& plan, const ClusterTask& task) {
  if (plan.machines) plan.machines->shares_machine = true;
  for (WorkerPlan& worker : plan.workers) {
    worker.variables["LOCAL_RANK"] = std::to_string(task.local_rank);
    worker.variables["LOCAL_WORLD_SIZE"] = std::to_string(task.local_tasks);
    worker.variables["GROUP_RANK"] = std::to_string(task.machine_rank);
    worker.variables["GROUP_WORLD_SIZE"] = std::to_string(task.machines);
  }
}

}  // namespace accelerate::detail
