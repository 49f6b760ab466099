#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <memory>

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

class OptimizerStep;

/// The fused kernels of LibTorch, by the optimizer whose step they take.
enum class FusedOptimizer { adamw, adam, sgd };

/// Makes a step of an optimizer.
using StepMaker = std::function<std::unique_ptr<OptimizerStep>(torch::optim::Optimizer&)>;

/// Whether steps that are made by `maker` do to small tensors with `options` what the optimizer's own step does: the first step
/// and later ones, with and without momentum or amsgrad, with gradients to divide, and skipped.
bool steps_rightly(FusedOptimizer kernel, const at::TensorOptions& options, const StepMaker& maker);

/// Whether this LibTorch's kernel steps parameters like this one rightly. Tried once in a process for each dtype and type of
/// device; a wrong one is reported in a warning. NotRecordable where it would have to be tried in a recording.
bool is_right(FusedOptimizer kernel, const at::Tensor& parameter);

}  // namespace accelerate::detail
