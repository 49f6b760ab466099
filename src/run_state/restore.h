#pragma once

#include <functional>
#include <vector>

namespace accelerate::detail {

struct LoadedRun;
struct RunParts;

/// Sets back what was changed, last first, unless the change was committed.
class Rollback {
 public:
  Rollback() = default;
  ~Rollback();
  Rollback(const Rollback&) = delete;
  Rollback& operator=(const Rollback&) = delete;

  void add(std::function<void()> undo) { undos_.push_back(std::move(undo)); }
  void commit() { undos_.clear(); }

 private:
  std::vector<std::function<void()>> undos_;
};

/// Restores everything that may refuse what it is given, and keeps in `rollback` how it was: optimizers, schedulers, scaler,
/// loaders, registered objects, communication hooks, random numbers. Models are only compared with their weights. CheckpointError
/// names the file that does not fit. The states of the optimizers are used up.
void restore_states(RunParts& parts, LoadedRun& loaded, Rollback& rollback);
/// Restores the rest, which cannot fail any more: weights, gradients, counters.
void restore_weights(RunParts& parts, const LoadedRun& loaded);

}  // namespace accelerate::detail
