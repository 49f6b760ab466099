#pragma once

#include <accelerate/checkpoint/tensor_dict.h>
#include <accelerate/distributed/value.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/host_copies.h"
#include "checkpoint/random_states.h"
#include "checkpoint_files/distributed_metadata.h"
#include "core/byte_sink.h"

namespace accelerate::detail {

struct RunParts;

/// One file of a checkpoint that has yet to be written.
struct PendingFile {
  std::string name;
  std::function<void(ByteSink&)> write;
};

struct SnapshotOptions {
  /// Model weights as safetensors files; off: files of torch.save.
  bool safe_serialization = true;
  /// Where to copy to, so that the run may resume while the files are written; null: files are written from the run's memory.
  HostCopies* copies = nullptr;
  /// This rank writes what is the same on all.
  bool writes_shared = true;
};

/// A distributed checkpoint in the folder of a checkpoint, and what this rank writes of it.
struct PlannedFolder {
  std::string name;
  DistributedMetadata plan;
};

/// What this rank writes of a checkpoint.
struct RunSnapshot {
  std::vector<PendingFile> files = {};
  /// The same ones on all ranks, which have yet to join their plans.
  std::vector<PlannedFolder> folders = {};
  /// To be made before the files are written.
  DeferredCopies copies = {};
};

/// The weights of all models, where this rank `keeps` them; of those that are saved as shards none. All ranks call it.
std::vector<TensorDict> model_weights(const RunParts& parts, bool keeps);

/// The states of all optimizers with what the schedulers of Python keep among their options. Those of sharded models are gathered
/// where this rank `keeps` them, or are this rank's own where shards are saved. All ranks call it.
std::vector<StateDict> optimizer_states(const RunParts& parts, bool keeps);

/// The state of the run as it is now, in which models have these weights, and optimizers these states. `python_random` are
/// Python's own random numbers, from the checkpoint that the run was resumed from, or null.
RunSnapshot take_snapshot(const RunParts& parts, const std::vector<TensorDict>& weights, const std::vector<StateDict>& optimizers,
                          std::shared_ptr<const PythonRandomStates> python_random, const SnapshotOptions& options);

/// The same with copies of its tensors.
Value copied_value(const Value& value, HostCopies& copies, CopyTime when = CopyTime::now);

}  // namespace accelerate::detail
