#include <accelerate/checkpoint/optimizer_state.h>
#include <accelerate/core/error.h>
#include <accelerate/training/accelerated_optimizer.h>
#include <accelerate/training/grad_scaler.h>
#include <accelerate/training/gradient_state.h>
#include <torch/optim/optimizer.h>

#include <unordered_set>
#include <utility>

#include "training/fused_step.h"
#include "training/optimizer_state.h"
#include "training/zero_gradient.h"

namespace accelerate {

struct AcceleratedOptimizer::Core {
  Core(std::shared_ptr<torch::optim::Optimizer> its_optimizer, std::shared_ptr<GradientState> its_gradient_state,
       std::shared_ptr<GradScaler> its_scaler, bool device_placement)
      : optimizer(std::move(its_optimizer)),
        gradient_state(std::move(its_gradient_state)),
        scaler(std::move(its_scaler)),
        kernel(detail::make_step(*optimizer)) {
    forget_repetitions();
    // The scaler knows optimizers by their address, and an earlier one may have ended there in the middle of a step.
    if (scaler) scaler->forget(*optimizer);
    if (device_placement) detail::place_state(*optimizer);
  }

  void step() {
    find_repetitions();
    if (!scaler) return kernel->take();
    skipped = !scaler->step(*optimizer, [this] { kernel->take(); });
    scaler->update_after(*optimizer);
  }

  /// Groups may have been added.
  void find_repetitions() {
    if (parameter_count() != known_parameters) forget_repetitions();
  }

  /// A parameter that is listed twice would be stepped, and its gradient unscaled, twice.
  void forget_repetitions() {
    std::unordered_set<const void*> seen;
    for (auto& group : optimizer->param_groups())
      std::erase_if(group.params(),
                    [&](const at::Tensor& parameter) { return !seen.insert(parameter.unsafeGetTensorImpl()).second; });
    known_parameters = seen.size();
  }

  size_t parameter_count() const {
    size_t count = 0;
    for (const auto& group : optimizer->param_groups()) count += group.params().size();
    return count;
  }

  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::shared_ptr<GradientState> gradient_state;
  std::shared_ptr<GradScaler> scaler;
  std::unique_ptr<detail::OptimizerStep> kernel;
  size_t known_parameters = 0;
  bool skipped = false;
};

AcceleratedOptimizer::AcceleratedOptimizer(torch::optim::Optimizer& optimizer, std::shared_ptr<GradientState> gradient_state,
                                           std::shared_ptr<GradScaler> scaler, bool device_placement)
    : AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer>(std::shared_ptr<void>(), &optimizer),
                           std::move(gradient_state), std::move(scaler), device_placement) {}

AcceleratedOptimizer::AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                           std::shared_ptr<GradientState> gradient_state, std::shared_ptr<GradScaler> scaler,
                                           bool device_placement) {
  if (!optimizer) throw UsageError("An optimizer was given as an empty pointer. Make it before it is prepared.");
  core_ = std::make_shared<Core>(std::move(optimizer), std::move(gradient_state), std::move(scaler), device_placement);
}

void AcceleratedOptimizer::step() {
  if (core_->gradient_state->sync_gradients()) core_->step();
}

at::Tensor AcceleratedOptimizer::step(const std::function<at::Tensor()>& closure) {
  if (!core_->gradient_state->sync_gradients()) return {};
  if (!closure) throw UsageError("step was given an empty closure. Call step() without one.");
  if (core_->scaler && core_->scaler->is_enabled()) {
    throw UsageError(
        "step was given a closure, and gradients are scaled (mixed_precision fp16): they have to be looked at before "
        "the step. Call backward first and step without a closure.");
  }
  core_->find_repetitions();
  return core_->kernel->take(closure);
}

void AcceleratedOptimizer::zero_grad(bool set_to_none) {
  if (!core_->gradient_state->sync_gradients()) return;
  for (const auto& group : core_->optimizer->param_groups()) {
    for (const auto& parameter : group.params()) detail::zero_gradient(parameter, set_to_none);
  }
  if (core_->scaler) core_->scaler->forget(*core_->optimizer);
}

std::vector<at::Tensor> AcceleratedOptimizer::parameters() const {
  std::vector<at::Tensor> parameters;
  for (const auto& group : param_groups()) parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

bool AcceleratedOptimizer::step_was_skipped() const { return core_->skipped; }

StateDict AcceleratedOptimizer::state_dict() const { return accelerate::state_dict(*core_->optimizer); }

void AcceleratedOptimizer::load_state_dict(const StateDict& state) { accelerate::load_state_dict(*core_->optimizer, state); }

torch::optim::Optimizer& AcceleratedOptimizer::optimizer() const { return *core_->optimizer; }

std::vector<torch::optim::OptimizerParamGroup>& AcceleratedOptimizer::param_groups() const {
  return core_->optimizer->param_groups();
}

const std::shared_ptr<GradScaler>& AcceleratedOptimizer::scaler() const { return core_->scaler; }

bool AcceleratedOptimizer::operator==(const AcceleratedOptimizer& other) const {
  return core_->optimizer == other.core_->optimizer;
}

}  // namespace accelerate
