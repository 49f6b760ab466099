#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "run_state/run_parts.h"

namespace accelerate::detail {

/// What was read of a checkpoint, before anything of the run is changed.
struct LoadedRun {
  std::string folder;
  std::vector<TensorDict> models;
  std::vector<StateDict> optimizers, schedulers, registered;
  std::optional<StateDict> scaler, own, hooks;
  std::optional<RandomStates> random;
  TensorDict gradients;
  /// See LoadStateOptions.
  bool restart_epoch = false;

  /// The path of a file of it, for messages.
  std::string file(const std::string& name) const { return folder + "/" + name; }
};

/// Puts back what was changed, last first, unless it is told to forget it.
class UndoList {
 public:
  UndoList() = default;
  ~UndoList();
  UndoList(const UndoList&) = delete;
  UndoList& operator=(const UndoList&) = delete;

  void add(std::function<void()> undo) { undos_.push_back(std::move(undo)); }
  void forget() { undos_.clear(); }

 private:
  std::vector<std::function<void()>> undos_;
};

/// Sets everything that may refuse what it is given, and keeps in `undo` how it was: optimizers, schedulers, scaler, loaders,
/// registered objects, hooks of gradients, random numbers. Models are only compared with their weights. CheckpointError names the
/// file that does not fit. The states of the optimizers are used up.
void restore_small_parts(RunParts& parts, LoadedRun& loaded, UndoList& undo);
/// Sets the rest, which cannot fail any more: weights, gradients, counters.
void restore_weights(RunParts& parts, const LoadedRun& loaded);

}  // namespace accelerate::detail
