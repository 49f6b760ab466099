#pragma once

#include <accelerate/checkpoint/module_state.h>

namespace accelerate::detail {

/// What load_state_dict would say to these tensors, with nothing changed. CheckpointError for those that do not fit.
LoadReport check_fit(const torch::nn::Module& module, const TensorDict& state, const LoadOptions& options);

}  // namespace accelerate::detail
