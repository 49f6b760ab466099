#pragma once

#include <accelerate/parallel/model.h>

#include <optional>

namespace accelerate {

class Accelerator;

/// While it lives, each process trains its model alone, and every `local_sgd_steps` all take the mean of their weights: far fewer
/// collectives than one of gradients a step. One process alone trains as always.
///
///   LocalSGD local(accelerator, model, 8);
///   for (auto& batch : loader) { …; optimizer.step(); local.step(); }
///   local.finish();
class [[nodiscard]] LocalSGD {
 public:
  /// UsageError when `local_sgd_steps` is less than 1. Not `enabled`: gradients are all-reduced as always.
  template <ModuleType M>
  LocalSGD(const Accelerator& accelerator, const Model<M>& model, int64_t local_sgd_steps, bool enabled = true)
      : LocalSGD(accelerator, model.core(), local_sgd_steps, enabled) {}
  /// Does not wait: left before `finish`, as by an exception, it leaves the processes with different weights.
  ~LocalSGD() = default;
  LocalSGD(LocalSGD&&) noexcept = default;
  LocalSGD& operator=(LocalSGD&&) = delete;

  /// After a step of the optimizer, on all processes: every local_sgd_steps-th takes the mean.
  void step(std::source_location where = std::source_location::current());
  /// Takes the mean a last time; from now on gradients are all-reduced again. A second call does nothing.
  void finish(std::source_location where = std::source_location::current());

 private:
  LocalSGD(const Accelerator& accelerator, std::shared_ptr<detail::ModelCore> model, int64_t local_sgd_steps, bool enabled);
  void average(std::source_location where);

  std::shared_ptr<detail::ModelCore> model_;
  int64_t local_sgd_steps_ = 1, steps_ = 0;
  std::optional<NoSyncScope> no_sync_;  // empty when it does nothing
};

}  // namespace accelerate
