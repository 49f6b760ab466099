#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace accelerate {

/// How gradients of several batches are added up before a step.
struct GradientAccumulationOptions {
  /// The last batch of a loader ends an accumulation, however short it is.
  bool sync_with_dataloader = true;
  /// All-reduce gradients after every batch all the same: more traffic, less memory.
  bool sync_each_batch = false;
  /// The dtype in which gradients are added up between steps; nothing: that of their parameters. float32 keeps the small ones of
  /// weights in bfloat16; bfloat16 saves memory where weights are float32. Such steps are not captured.
  std::optional<c10::ScalarType> dtype = {};
};

/// Where a loop over a loader is, as far as others need to know.
struct LoaderPosition {
  /// The batch in hand is the last one.
  bool end_of_dataloader = false;
  /// How many samples of the last batch of all processes together are no repetition; 0: all, -1: not known.
  int64_t remainder = -1;
};

/// Where a run is within its accumulation and its data. An accelerator and everything it has prepared share one.
class GradientState {
 public:
  /// UsageError unless `num_steps` is at least 1.
  explicit GradientState(int num_steps = 1, GradientAccumulationOptions options = {});

  int num_steps() const { return num_steps_; }
  void set_num_steps(int num_steps);
  const GradientAccumulationOptions& options() const { return options_; }

  /// True while gradients are all-reduced and steps are taken; false in the batches between.
  bool sync_gradients() const { return sync_gradients_; }
  void set_sync_gradients(bool on) { sync_gradients_ = on; }
  /// Counts a batch, decides sync_gradients for it, and returns that.
  bool count_batch();
  /// What count_batch would return for the batch in hand, and after it for `later` more without a word from a loader.
  bool would_sync(int later = 0) const;
  /// All that count_batch was called for.
  int64_t counted() const { return counted_; }
  /// Batches counted so far; the last batch of a loader sets it back.
  int64_t step() const { return step_; }
  /// Of a run that goes on, or that begins anew with 0.
  void set_step(int64_t step) { step_ = step; }

  /// A loop over a loader begins; what is nested in it comes on top.
  void enter(std::shared_ptr<const LoaderPosition> loader);
  /// It has ended, wherever it is among the others.
  void leave(const LoaderPosition* loader);
  bool in_dataloader() const { return !loaders_.empty(); }
  /// Of the innermost loop; false and -1 outside of one.
  bool end_of_dataloader() const;
  int64_t remainder() const;

  /// Called, when there is one, whenever a loop that is nested in no other has come to the end of its data.
  void on_end_of_data(std::function<void()> action) { on_end_of_data_ = std::move(action); }
  bool awaits_end_of_data() const { return on_end_of_data_ != nullptr; }
  /// A loop has come to the end of its data, and has left.
  void data_ended() const;

 private:
  int num_steps_;
  GradientAccumulationOptions options_;
  bool sync_gradients_ = true;
  int64_t step_ = 0, counted_ = 0;
  std::vector<std::shared_ptr<const LoaderPosition>> loaders_;
  std::function<void()> on_end_of_data_;
};

}  // namespace accelerate
