#pragma once

#include <accelerate/checkpoint/tensor_dict.h>
#include <accelerate/distributed/value.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/folder_files.h"
#include "checkpoint/random_states.h"
#include "run_state/sharded_reader.h"

namespace accelerate::detail {

struct RunParts;

/// What was read of a checkpoint, before anything of the run is changed.
struct LoadedRun {
  std::string folder;
  /// Of a model that was read as shards tensors without elements, and its shards beside them.
  std::vector<TensorDict> models;
  std::vector<std::optional<LoadedShards>> shards;
  std::vector<StateDict> optimizers, schedulers, registered;
  /// Of each optimizer where its state was, and whether it is this rank's part of it.
  struct OptimizerSource {
    std::string name;
    bool is_part = false;
  };
  std::vector<OptimizerSource> optimizer_sources;
  std::optional<StateDict> scaler, own, hooks;
  std::optional<RandomStates> random;
  /// Of an accumulation: this rank's sums, and the elements of what had been averaged over the ranks that sharded a model.
  TensorDict gradients, averaged_gradients;
  /// See LoadStateOptions.
  bool restart_epoch = false;

  /// The path of a file of it, for messages.
  std::string file(const std::string& name) const { return folder + "/" + name; }
};

/// The files that every rank reads of a checkpoint, as far as they are there.
std::vector<std::string> common_files(const RunParts& parts, const FolderFiles& files);

/// What these parts have in a checkpoint. Nothing of the run is changed. CheckpointError when it is not there or cannot be read.
/// Tensors may lie in the memory of `files`.
std::shared_ptr<LoadedRun> read_checkpoint(const RunParts& parts, FolderFiles& files);

/// Why a checkpoint cannot be used, or nothing: by its manifest, whose checksums are compared if `verify`; without one, as those
/// that Python wrote, by reading all of it. What was read is kept in `files`. FileAccessError when it cannot be known.
std::string find_checkpoint_defect(const RunParts& parts, const std::string& folder, bool verify,
                                   std::unique_ptr<FolderFiles>& files);

}  // namespace accelerate::detail
