#pragma once

#include <accelerate/launch/launch_plan.h>

#include <array>

#include "elastic/cluster_place.h"
#include "elastic/machine_group.h"
#include "launch/failure_notes.h"

namespace accelerate::detail {

/// "1" in the environment of a launcher that another one has started on its host: signals for it are lines on its stdin, and the
/// end of these is SIGTERM. For a connection may break, or the other launcher be killed, and no signal reaches another host then.
inline constexpr char kStdinSignalsVariable[] = "ACCELERATE_LAUNCH_UNTIL_STDIN_CLOSES";

/// The variables by which torchrun and this launcher give a worker its rank. In the launcher's own environment they belong to an
/// outer launch.
inline constexpr std::array kPlaceVariables = {"RANK",
                                               "LOCAL_RANK",
                                               "GROUP_RANK",
                                               "ROLE_RANK",
                                               "ROLE_NAME",
                                               "WORLD_SIZE",
                                               "LOCAL_WORLD_SIZE",
                                               "GROUP_WORLD_SIZE",
                                               "ROLE_WORLD_SIZE",
                                               "MASTER_ADDR",
                                               "MASTER_PORT",
                                               "TORCHELASTIC_RESTART_COUNT",
                                               "TORCHELASTIC_MAX_RESTARTS",
                                               "TORCHELASTIC_RUN_ID",
                                               "TORCHELASTIC_USE_AGENT_STORE",
                                               "TORCHELASTIC_SIGNALS_TO_HANDLE",
                                               "TORCHELASTIC_ERROR_FILE",
                                               kFailureNotesVariable,
                                               kStdinSignalsVariable};

/// Gives a worker the rank, and all that follows from it, that it has in a round of several machines. Where other launchers run
/// on its machine, the number of the launcher is not that of the machine.
void place_in_round(WorkerPlan& worker, int local_rank, const Round& round, const MachineSettings& machines);

/// Beside the rank, tells the worker of a task where it is among those of its machine, whose launchers are others.
void place_in_task(LaunchPlan& plan, const ClusterTask& task);

}  // namespace accelerate::detail
