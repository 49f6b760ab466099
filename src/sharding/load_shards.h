#pragma once

#include <functional>
#include <source_location>
#include <string>

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// Whether parameters of the module are sharded over the ranks.
bool is_sharded(const torch::nn::Module& module);

struct LoadShardsOptions {
  /// Names that only the model or only the checkpoint has are errors.
  bool strict = false;
  /// The name in the model of a tensor of the checkpoint; an empty one leaves it out. May be empty itself.
  std::function<std::string(const std::string&)> new_name = {};
  std::source_location where = {};
};

/// Fills the shards of a module from a checkpoint, a file, an index or a folder: each rank reads its own parts, so that all ranks
/// together read each byte once; all of them call it. What is not sharded is read by each. CheckpointError names what is missing
/// or does not fit, and then nothing was changed.
void load_shards(torch::nn::Module& module, const std::string& checkpoint, const LoadShardsOptions& options);

}  // namespace accelerate::detail
