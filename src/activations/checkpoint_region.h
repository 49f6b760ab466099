#pragma once

#include <accelerate/activations/activation_checkpoint.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "activations/forward_state.h"
#include "activations/kept_tensor.h"
#include "activations/saved_layout.h"
#include "activations/saved_tensor_hooks.h"

namespace accelerate::detail {

/// An input of a region, kept as the scope around it keeps tensors: as an index when that is a region too.
class SavedInput {
 public:
  SavedInput(const at::Tensor& tensor, HookMaker* maker);
  /// Its values, without a graph. UsageError, which begins with `call`'s name, when they were changed in place.
  at::Tensor get(const RepeatableCall& call) const;
  bool requires_grad() const { return requires_grad_; }
  /// Whether it is there and costs nothing to get.
  bool is_kept() const { return kept_.has_value(); }

 private:
  std::optional<KeptTensor> kept_;
  std::unique_ptr<SavedVariableHooks> hooks_;
  bool requires_grad_;
};

/// One call of a checkpointed function, from its forward pass until nobody needs its gradients any more. Tensors that its
/// operators save have numbers, in order. The hooks of a saved tensor own the region.
class CheckpointRegion final : public HookMaker, public std::enable_shared_from_this<CheckpointRegion> {
 public:
  CheckpointRegion(std::unique_ptr<RepeatableCall> call, const CheckpointOptions& options);

  /// Hooks for a tensor that is saved during the forward pass.
  std::unique_ptr<SavedVariableHooks> make_hooks() override;
  /// The forward pass is over. UsageError when it has changed an input in place.
  void finish_forward();

  const RepeatableCall& call() const { return *call_; }

 private:
  friend class RegionHooks;
  friend class Collector;
  struct Slot {
    SavedLayout layout;
    /// Recomputed, and somebody may still ask for it.
    bool is_needed;
    at::Tensor collected = {};
  };
  /// The inputs while the forward pass runs: who they are and what they were.
  struct ForwardInput {
    at::Tensor tensor;
    int64_t version;
  };

  /// Notes a tensor that was saved; returns its number.
  size_t add(const at::Tensor& tensor, bool is_recomputed);
  /// Whether it is an input, or has the memory of one, of those that are kept as they are; during the forward pass.
  bool is_of_kept_input(const at::Tensor& tensor) const;
  /// The tensor with this number, which is then no longer kept: computed again when it is not there.
  at::Tensor take(size_t number);
  /// Nobody will ask for it.
  void forget(size_t number);
  std::optional<at::Tensor> take_collected(size_t number);
  bool needs_rerun();
  at::Tensor rerun(size_t wanted);
  void release_after_backward();

  std::unique_ptr<RepeatableCall> call_;
  std::vector<ForwardInput> forward_inputs_;
  std::vector<SavedInput> inputs_;
  ForwardState state_;
  std::mutex mutex_;  // for slots; never held while the function runs
  std::vector<Slot> slots_;
  std::recursive_mutex rerun_mutex_;
  bool is_rerunning_ = false;
};

}  // namespace accelerate::detail
