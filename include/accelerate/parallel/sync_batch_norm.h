#pragma once

#include <accelerate/distributed/process_state.h>

#include <source_location>

namespace torch::nn {
class Module;
}

namespace accelerate {

/// From now on every BatchNorm1d, 2d and 3d in `module` that trains normalises by the statistics of the batches of all processes,
/// as one batch norm of the joined batch would: forward, backward and running statistics. The modules stay the same objects, so
/// that members that hold them and their names in checkpoints do, too; a copy made by `clone` is an ordinary one. Evaluation is
/// as it was. All processes make the same forward and backward passes then. Returns how many layers there are; on one process
/// nothing else happens. `where` names the collectives.
int64_t convert_sync_batchnorm(const ProcessState& state, torch::nn::Module& module,
                               std::source_location where = std::source_location::current());

}  // namespace accelerate
