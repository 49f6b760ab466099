#include <accelerate/checkpoint/optimizer_state.h>
#include <accelerate/core/error.h>
#include <accelerate/training/accelerated_optimizer.h>
#include <accelerate/training/grad_scaler.h>
#include <accelerate/training/gradient_state.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "training/fused_step.h"
#include "training/optimizer_state.h"
#include "training/step_recording.h"
#include "training/step_verdict.h"
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
    if (!scaler || !scaler->is_enabled()) return kernel->take();
    settle();
    const auto found_inf = scaler->begin_step(*optimizer);
    // On a CPU there is nothing to wait for, and what several devices have found has to come together first.
    if (found_inf.size() == 1 && !found_inf.front().is_cpu()) take_back = kernel->take_unless(found_inf.front());
    if (take_back) {
      verdict.ask(found_inf.front());
      verdict.expect();
    } else {
      skipped = std::any_of(found_inf.begin(), found_inf.end(), [](const at::Tensor& found) { return found.item<float>() != 0; });
      if (!skipped) kernel->take();
    }
    scaler->end_step(*optimizer);
    scaler->update_after(*optimizer);
  }

  /// Records a step: what it does on the device, and what is to be done on the host before each replay.
  void record(detail::StepRecording& recording, const std::shared_ptr<Core>& self) {
    find_repetitions();
    if (recording.has_stepped(*optimizer)) throw detail::NotRecordable("an optimizer steps twice in it");
    recording.note_step(*optimizer);
    const bool scaled = scaler && scaler->is_enabled();
    std::optional<at::Tensor> found_inf;
    if (scaled) {
      const auto found = scaler->begin_step(*optimizer);
      if (found.size() != 1) throw detail::NotRecordable("an optimizer has gradients on several devices");
      found_inf = found.front();
    }
    const auto recorded = std::make_shared<detail::RecordedStep>(kernel->record(found_inf));
    std::optional<GradScalerOptions> growth;
    if (scaled) growth = scaler->options();
    recording.add(
        {.fits = [self, recorded, growth] { return recorded->fits() && (!growth || self->scaler->options() == *growth); },
         .run =
             [self, recorded] {
               self->settle();
               recorded->begin();
             }});
    if (!scaled) return;
    verdict.ask(*found_inf);
    scaler->end_step(*optimizer);
    scaler->update_after(*optimizer);
    recording.decided_on_device();
    recording.add({.run =
                       [self, recorded] {
                         self->take_back = recorded->take_back;
                         self->verdict.expect();
                       },
                   .asks_for_result = true});
  }

  /// Brings up to date what the host knows: whether the last step was skipped, and what it has counted.
  void settle() {
    if (!take_back) return;
    skipped = verdict.skipped();
    if (skipped) take_back();
    take_back = nullptr;
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
  // Of a step that the device decided about and nobody has asked for since.
  detail::StepVerdict verdict;
  std::function<void()> take_back;
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
  if (!core_->gradient_state->sync_gradients()) return;
  if (auto* recording = detail::StepRecording::current()) return core_->record(*recording, core_);
  core_->step();
}

at::Tensor AcceleratedOptimizer::step(const std::function<at::Tensor()>& closure) {
  if (!core_->gradient_state->sync_gradients()) return {};
  if (!closure) throw UsageError("step was given an empty closure. Call step() without one.");
  if (core_->scaler && core_->scaler->is_enabled()) {
    throw UsageError(
        "step was given a closure, and gradients are scaled (mixed_precision fp16): they have to be looked at before "
        "the step. Call backward first and step without a closure.");
  }
  if (detail::StepRecording::current()) throw detail::NotRecordable("an optimizer steps with a closure");
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

bool AcceleratedOptimizer::step_was_skipped() const {
  if (core_->scaler && detail::StepRecording::current())
    throw detail::NotRecordable("it asks whether a step was skipped, which the device is yet to decide");
  core_->settle();
  return core_->skipped;
}

StateDict AcceleratedOptimizer::state_dict() const { return accelerate::state_dict(optimizer()); }

void AcceleratedOptimizer::load_state_dict(const StateDict& state) { accelerate::load_state_dict(optimizer(), state); }

torch::optim::Optimizer& AcceleratedOptimizer::optimizer() const {
  if (!detail::StepRecording::current()) core_->settle();
  return *core_->optimizer;
}

std::vector<torch::optim::OptimizerParamGroup>& AcceleratedOptimizer::param_groups() const {
  return core_->optimizer->param_groups();
}

const std::shared_ptr<GradScaler>& AcceleratedOptimizer::scaler() const { return core_->scaler; }

bool AcceleratedOptimizer::operator==(const AcceleratedOptimizer& other) const {
  return core_->optimizer == other.core_->optimizer;
}

}  // namespace accelerate
