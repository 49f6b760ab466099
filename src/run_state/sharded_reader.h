#pragma once

#include <accelerate/checkpoint/tensor_dict.h>
#include <accelerate/distributed/value.h>

#include <filesystem>
#include <optional>
#include <vector>

namespace accelerate {
class AcceleratedOptimizer;
}

/// Reads folders of distributed checkpoints into runs that are sharded over any number of ranks, or not at all. A rank reads what
/// it needs, and nothing of the run is changed. CheckpointError names the file that is missing or damaged.
namespace accelerate::detail {

class ModelCore;
struct RunParts;

/// This rank's part of a sharded model.
struct LoadedShards {
  /// Of each unit.
  std::vector<at::Tensor> shards;
  /// What each rank holds whole.
  TensorDict whole;
};

struct LoadedWeights {
  /// Of a model that is read as shards, tensors without elements, which tell whether it fits.
  TensorDict weights;
  std::optional<LoadedShards> shards;
};
LoadedWeights read_distributed_model(const ModelCore& model, const std::filesystem::path& folder);

/// The state of an optimizer by the names of its parameters. Of those that are sharded it has this rank's parts.
StateDict read_distributed_optimizer(const RunParts& parts, const AcceleratedOptimizer& optimizer,
                                     const std::filesystem::path& folder);

}  // namespace accelerate::detail
