#pragma once

#include <accelerate/distributed/value.h>

namespace accelerate::detail {

struct LoadedRun;
struct RunParts;

/// Of each optimizer, in its order, the names that its parameters have in the prepared models, the first one where weights are
/// tied: "0.fc.weight" is `fc.weight` of the first model, None a parameter of no model. An optimizer's state is saved by number
/// alone, as in Python.
Value::List parameter_names(const RunParts& parts);

/// CheckpointError when an optimizer has the state of another parameter: one that was saved under the name of a parameter of
/// these models is elsewhere now. Checkpoints of Python, and older ones, have no names to compare.
void check_parameter_names(const RunParts& parts, const LoadedRun& loaded);

}  // namespace accelerate::detail
