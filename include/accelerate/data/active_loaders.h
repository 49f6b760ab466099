#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace accelerate {

/// Where a loop over a prepared loader is.
struct LoaderPosition {
  /// The current batch is the last one.
  bool end_of_dataloader = false;
  /// How many samples of the last batch of all processes together are no repetition; 0: all, -1: not known.
  int64_t remainder = -1;
};

/// The loops over prepared loaders that a run is in. An accelerator and all loaders that it prepares share one.
class ActiveLoaders {
 public:
  /// A loop over a loader begins; what is nested in it comes on top.
  void enter(std::shared_ptr<const LoaderPosition> loader);
  /// It has ended, wherever it is among the others.
  void leave(const LoaderPosition* loader);
  bool in_dataloader() const { return !loaders_.empty(); }
  /// Of the innermost loop; false and -1 outside of one.
  bool end_of_dataloader() const;
  int64_t remainder() const;

  /// Called, when there is one, whenever an outermost loop has reached the end of its data.
  void on_end_of_data(std::function<void()> action) { on_end_of_data_ = std::move(action); }
  bool awaits_end_of_data() const { return on_end_of_data_ != nullptr; }
  /// A loop has reached the end of its data, and has left.
  void data_ended() const;

 private:
  std::vector<std::shared_ptr<const LoaderPosition>> loaders_;
  std::function<void()> on_end_of_data_;
};

}  // namespace accelerate
