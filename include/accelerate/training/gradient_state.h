#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace accelerate {

/// How gradients of several batches are accumulated before a step.
struct GradientAccumulationOptions {
  /// The last batch of a loader ends an accumulation, however short it is.
  bool sync_with_dataloader = true;
  /// Still all-reduce gradients after every batch: more traffic, less memory.
  bool sync_each_batch = false;
  /// The dtype in which gradients are accumulated between steps; nothing: that of their parameters. float32 keeps the small ones
  /// of weights in bfloat16; bfloat16 saves memory where weights are float32. Such steps are not captured.
  std::optional<c10::ScalarType> dtype = {};
};

/// Where a run is within its accumulation. An accelerator and the optimizers and schedulers that it prepares share one.
class GradientState {
 public:
  /// `is_last_batch` tells whether the current batch is the last of its loader; without it none is. UsageError unless
  /// `num_steps` is at least 1.
  explicit GradientState(int num_steps = 1, GradientAccumulationOptions options = {}, std::function<bool()> is_last_batch = {});

  int num_steps() const { return num_steps_; }
  void set_num_steps(int num_steps);
  const GradientAccumulationOptions& options() const { return options_; }

  /// True while gradients are all-reduced and steps are taken; false in the batches between.
  bool sync_gradients() const { return sync_gradients_; }
  void set_sync_gradients(bool on) { sync_gradients_ = on; }
  /// Counts a batch, decides sync_gradients for it, and returns that.
  bool count_batch();
  /// What count_batch would return for the current batch, and for `later` more without a loader's end.
  bool would_sync(int later = 0) const;
  /// All that count_batch was called for.
  int64_t counted() const { return counted_; }
  /// Batches counted so far; the last batch of a loader resets it.
  int64_t step() const { return step_; }
  /// Of a resumed run, or 0 to restart.
  void set_step(int64_t step) { step_ = step; }

 private:
  /// The current batch ends its accumulation, since it is the last one.
  bool ends_with_data() const { return options_.sync_with_dataloader && is_last_batch_ && is_last_batch_(); }

  int num_steps_;
  GradientAccumulationOptions options_;
  std::function<bool()> is_last_batch_;
  bool sync_gradients_ = true;
  int64_t step_ = 0, counted_ = 0;
};

}  // namespace accelerate
