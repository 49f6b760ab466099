#pragma once

#include <accelerate/parallel/model.h>
#include <accelerate/training/accelerated_optimizer.h>

#include <memory>
#include <unordered_set>
#include <vector>

namespace accelerate::detail {

/// Tensors by what they are, not by their values.
std::unordered_set<const void*> tensors_of(const std::vector<at::Tensor>& parameters);
bool shares_any(const std::unordered_set<const void*>& tensors, const std::vector<at::Tensor>& parameters);

/// What is checked before every step of a prepared optimizer: that the gradients of its models were synchronised, that its
/// parameters are those of prepared models, and in debug mode, every tenth time, that weights are the same on all ranks.
class StepCheck {
 public:
  /// `models` are those of the accelerator, also the ones that are prepared later.
  explicit StepCheck(std::shared_ptr<const std::vector<std::weak_ptr<ModelCore>>> models) : models_(std::move(models)) {}
  /// UsageError and DistributedError where there must be no step.
  void operator()(const AcceleratedOptimizer& optimizer);

 private:
  /// At the first step, and when parameters were added since.
  void find_stepped_models(const AcceleratedOptimizer& optimizer);

  std::shared_ptr<const std::vector<std::weak_ptr<ModelCore>>> models_;
  struct Stepped {
    std::weak_ptr<ModelCore> model;
    /// Whether the optimizer has all its trained parameters.
    bool is_whole;
  };
  std::vector<Stepped> stepped_;
  size_t known_parameters_ = 0;
  int64_t steps_ = 0;
};

}  // namespace accelerate::detail
