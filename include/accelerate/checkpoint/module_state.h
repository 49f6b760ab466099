#pragma once

#include <accelerate/checkpoint/tensor_dict.h>

namespace torch::nn {
class Module;
}

namespace accelerate {

/// The parameters and buffers of a module and its children under the names and in the order that Python gives them. The
/// tensors share their memory with the module.
TensorDict state_dict(const torch::nn::Module& module);

struct LoadOptions {
  /// Missing and unexpected names are errors.
  bool strict = true;
};

/// What a dictionary and a module did not have in common.
struct LoadReport {
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
};

/// Copies tensors into the parameters and buffers of the same names, converting dtype and device. CheckpointError lists
/// every name that is missing, unexpected (both unless strict is off) or of another shape; then nothing was changed.
LoadReport load_state_dict(torch::nn::Module& module, const TensorDict& state, const LoadOptions& options = {});

}  // namespace accelerate
