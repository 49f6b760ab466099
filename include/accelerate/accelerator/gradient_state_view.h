#pragma once

#include <accelerate/data/active_loaders.h>
#include <accelerate/training/gradient_state.h>

namespace accelerate {

/// Python's `gradient_state`: where a run is within its accumulation, and within the innermost loop over a prepared
/// loader. A view of its accelerator.
class GradientStateView {
 public:
  GradientStateView(const GradientState& gradients, const ActiveLoaders& loaders) : gradients_(&gradients), loaders_(&loaders) {}

  int num_steps() const { return gradients_->num_steps(); }
  const GradientAccumulationOptions& options() const { return gradients_->options(); }
  /// True while gradients are all-reduced and steps are taken; false in the batches between.
  bool sync_gradients() const { return gradients_->sync_gradients(); }
  /// Batches counted so far; the last batch of a loader resets it.
  int64_t step() const { return gradients_->step(); }
  bool in_dataloader() const { return loaders_->in_dataloader(); }
  /// The current batch is the last one of its loader; false outside of a loop.
  bool end_of_dataloader() const { return loaders_->end_of_dataloader(); }
  /// How many samples of the last global batch are not repeated; 0: all, -1: unknown, or no loop.
  int64_t remainder() const { return loaders_->remainder(); }

 private:
  const GradientState* gradients_;
  const ActiveLoaders* loaders_;
};

}  // namespace accelerate
