#pragma once

#include <accelerate/distributed/value.h>

#include <source_location>
#include <string>
#include <vector>

#include "run_state/snapshot.h"

namespace accelerate {
class AcceleratedOptimizer;
class ProcessState;
}  // namespace accelerate

/// Sharded models, and optimizers that step them, in distributed checkpoints: each rank writes its own shards, and none holds the
/// model. Where there are several copies of the weights, the ranks of the first one write.
namespace accelerate::detail {

class ModelCore;

bool saves_shards(const ModelCore& model);
/// Whether it steps shards that are saved so.
bool saves_shards(const RunParts& parts, const AcceleratedOptimizer& optimizer);

/// Adds this rank's file of a model to a snapshot, and of an optimizer, whose state is this rank's. Elements are copied to
/// `copies`, unless that is null. CheckpointError for a tensor that files cannot hold.
void add_shards(RunSnapshot& snapshot, const RunParts& parts, size_t model, HostCopies* copies);
void add_shards(RunSnapshot& snapshot, const RunParts& parts, size_t optimizer, const StateDict& state, HostCopies* copies);

/// The ranks tell each other what they are about to write where, and the rank that `leads` gets the `.metadata` files to write. A
/// collective. UsageError when they do not have the same folders.
void join_folders(RunSnapshot& snapshot, const ProcessState& state, bool leads, std::source_location where);

}  // namespace accelerate::detail
