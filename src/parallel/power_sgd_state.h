#pragma once

#include <ATen/core/TensorBody.h>
#include <accelerate/distributed/value.h>
#include <accelerate/parallel/power_sgd_options.h>

#include <map>
#include <random>

namespace accelerate::detail {

/// What PowerSGD remembers from one all-reduce to the next.
class PowerSgdState {
 public:
  explicit PowerSgdState(const PowerSgdOptions& options) : options_(options), random_(options.random_seed) {}

  const PowerSgdOptions& options() const { return options_; }
  /// The all-reduces so far are all plain ones.
  bool warming_up() const { return iteration_ < options_.start_powerSGD_iter; }
  /// An all-reduce of all buckets has been started.
  void count() { ++iteration_; }
  /// Seeds differ from all-reduce to all-reduce, and are those of PyTorch.
  uint64_t next_seed();

  /// By the number of a bucket: what its last all-reduce lost, and its right factors, one after the other.
  std::map<size_t, at::Tensor>& errors() { return errors_; }
  std::map<size_t, at::Tensor>& factors() { return factors_; }

  /// The tensors are the state's own.
  StateDict state_dict() const;
  /// The tensors are copied to `device`. UsageError when it is no such state; then nothing has changed.
  void load_state_dict(const StateDict& state, at::Device device);

 private:
  const PowerSgdOptions options_;
  int64_t iteration_ = 0;
  std::mt19937 random_;
  std::map<size_t, at::Tensor> errors_, factors_;
};

}  // namespace accelerate::detail
