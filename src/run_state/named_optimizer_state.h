#pragma once

#include <accelerate/distributed/value.h>

#include <string>
#include <vector>

namespace accelerate {
class AcceleratedOptimizer;
}

/// The state of an optimizer by the names of its parameters, as Python's FSDP saves it. Others have numbers, by the order in
/// which the optimizer was given them.
namespace accelerate::detail {

struct RunParts;

/// Of each parameter group the names of its parameters: those that their model gives them, the first one where weights are tied.
/// Where an optimizer steps several models the number of the model goes before them: "1.fc.weight". A parameter of no prepared
/// model is called by its number.
using GroupNames = std::vector<std::vector<std::string>>;
GroupNames group_names(const RunParts& parts, const AcceleratedOptimizer& optimizer);

StateDict named_state(StateDict numbered, const GroupNames& names);

/// The reverse, of a state that may have numbers already. CheckpointError when it has other groups, or other parameters in them.
StateDict numbered_state(StateDict state, const GroupNames& names);

}  // namespace accelerate::detail
