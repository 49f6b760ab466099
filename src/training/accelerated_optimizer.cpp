#include <ATen/core/grad_mode.h>
#include <accelerate/checkpoint/optimizer_state.h>
#include <accelerate/core/error.h>
#include <accelerate/training/accelerated_optimizer.h>
#include <accelerate/training/grad_scaler.h>
#include <accelerate/training/gradient_state.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <limits>
#include <unordered_set>
#include <utility>

#include "residency/host_memory.h"
#include "training/fused_step.h"
#include "training/gradient_norm.h"
#include "training/optimizer_lifetime.h"
#include "training/optimizer_state_device.h"
#include "training/step_recording.h"
#include "training/step_verdict.h"
#include "training/zero_gradient.h"

namespace accelerate {

using namespace detail;

struct AcceleratedOptimizer::Core {
  Core(std::shared_ptr<torch::optim::Optimizer> its_optimizer, std::shared_ptr<GradientState> its_gradient_state,
       std::shared_ptr<GradScaler> its_scaler, bool device_placement)
      : optimizer(std::move(its_optimizer)),
        alive(lifetime_of(*optimizer)),
        watched(!alive.expired()),
        gradient_state(std::move(its_gradient_state)),
        scaler(std::move(its_scaler)),
        kernel(make_step(*optimizer)) {
    forget_repetitions();
    // The scaler knows optimizers by their address, and an earlier one may have ended there in the middle of a step.
    if (scaler) scaler->forget(*optimizer);
    if (device_placement) place_state(*optimizer);
    for (const auto& group : optimizer->param_groups())
      in_files |= std::any_of(group.params().begin(), group.params().end(), is_in_file);
  }

  void step() {
    find_repetitions();
    if (in_files) place_state(*optimizer);  // it may have been loaded
    const auto by = take_divisor();
    if (!scaler || !scaler->is_enabled()) return kernel->take(by);
    settle();
    const auto found_inf = scaler->begin_step(*optimizer, /*are_unchanged=*/by.has_value());
    // On a CPU there is nothing to wait for, and what several devices have found has to come together first.
    if (found_inf.size() == 1 && !found_inf.front().is_cpu()) rollback = kernel->step_unless_inf({found_inf.front(), by});
    if (rollback) {
      verdict.ask(found_inf.front());
      verdict.expect();
    } else {
      skipped = std::any_of(found_inf.begin(), found_inf.end(), [](const at::Tensor& found) { return found.item<float>() != 0; });
      if (!skipped) kernel->take(by);
    }
    scaler->end_step(*optimizer);
    scaler->update_after(*optimizer);
  }

  /// Records a step: what it does on the device, and what is to be done on the host before each replay.
  void record(StepRecording& recording, const std::shared_ptr<Core>& self) {
    find_repetitions();
    if (recording.has_stepped(*optimizer)) throw NotRecordable("an optimizer steps twice in it");
    recording.note_step(*optimizer);
    const bool scaled = scaler && scaler->is_enabled();
    const auto by = take_divisor();
    std::optional<at::Tensor> found_inf;
    if (scaled) {
      const auto found = scaler->begin_step(*optimizer, /*are_unchanged=*/by.has_value());
      if (found.size() != 1) throw NotRecordable("an optimizer has gradients on several devices");
      found_inf = found.front();
    }
    const auto recorded = std::make_shared<RecordedStep>(kernel->record({found_inf, by}));
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
                         self->rollback = recorded->rollback;
                         self->verdict.expect();
                       },
                   .asks_for_result = true});
  }

  std::optional<at::Tensor> clip_in_step(const std::vector<at::Tensor>& parameters, double max_norm,
                                         const ClipGradNormOptions& options) {
    const bool scaled = scaler && scaler->is_enabled();
    if (!kernel->can_divide() || !gradient_state->sync_gradients()) return {};
    if (scaled && (scaler->is_unscaled(*optimizer) || !shows_infinities(options.norm_type))) return {};
    const auto gradients = own_gradients(parameters);
    if (!gradients) return {};
    clip_now();
    const at::NoGradGuard no_grad;
    auto total = total_norm_of({*gradients}, options.norm_type);
    check_finite(total, options);
    at::Tensor scale;
    if (scaled) {
      // Not a number where the norm is infinite or none.
      const auto found_inf = total.sub(total).ne_(0);
      scale = scaler->unscale_in_step(*optimizer, found_inf).to(total.device());
      total = total.div(scale);
    }
    const auto excess = total.add(1e-6).div_(max_norm).clamp_min_(1);
    pending = {scaled ? excess.mul_(scale) : excess, seen_gradients(), StepRecording::current()};
    return total;
  }

  /// Whether a norm of scaled gradients is finite exactly when they are: others overflow, or pass over some.
  static bool shows_infinities(double norm_type) {
    return norm_type == 1 || norm_type == 2 || norm_type == std::numeric_limits<double>::infinity();
  }

  /// Scales those gradients in place that were left to the next step, if they are still there.
  void clip_now() {
    if (!pending) return;
    check_recorded_here();
    if (!is_of_present_gradients()) return forget_clip();  // no step came to those
    const auto by = take_divisor();
    divide_gradients(*optimizer, *by);
  }

  void forget_clip() {
    pending.reset();
    if (scaler) scaler->forget(*optimizer);
  }

  /// What the step that begins now divides gradients by.
  std::optional<at::Tensor> take_divisor() {
    if (!pending) return {};
    check_recorded_here();
    if (pending->gradients != seen_gradients()) {
      forget_clip();
      throw UsageError(
          "Gradients changed after clip_grad_norm_ deferred their scaling to the next step (in_step). Clip after the last "
          "backward pass, right before the step, or without in_step.");
    }
    return std::exchange(pending, std::nullopt)->divisor;
  }

  void check_recorded_here() const {
    if (StepRecording::current() && pending->recording != StepRecording::current())
      throw NotRecordable("gradients were clipped (in_step) before it");
  }

  /// A gradient, and how often it was written to. Another one never lies where it lay as long as this is kept.
  using SeenGradient = std::pair<c10::weak_intrusive_ptr<c10::TensorImpl>, int64_t>;

  std::vector<SeenGradient> seen_gradients() const {
    std::vector<SeenGradient> seen;
    for (const auto& group : optimizer->param_groups()) {
      for (const auto& parameter : group.params()) {
        const auto& gradient = parameter.grad();
        if (gradient.defined()) seen.emplace_back(gradient.getIntrusivePtr(), gradient.is_inference() ? 0 : gradient._version());
      }
    }
    return seen;
  }

  bool is_of_present_gradients() const {
    const auto now = seen_gradients();
    return std::equal(now.begin(), now.end(), pending->gradients.begin(), pending->gradients.end(),
                      [](const auto& a, const auto& b) { return a.first == b.first; });
  }

  /// Brings up to date what the host knows: whether the last step was skipped, and what it has counted.
  void settle() {
    if (!rollback) return;
    skipped = verdict.skipped();
    if (skipped) rollback();
    rollback = nullptr;
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

  /// The gradients of `parameters`, if those are all that a step uses and of one kind.
  std::optional<TensorGroup> own_gradients(const std::vector<at::Tensor>& parameters) const {
    std::unordered_set<const void*> theirs;
    for (const auto& parameter : parameters) {
      if (parameter.grad().defined()) theirs.insert(parameter.unsafeGetTensorImpl());
    }
    std::vector<TensorGroup> kinds;
    for (const auto& group : optimizer->param_groups()) {
      for (const auto& parameter : group.params()) {
        const auto& gradient = parameter.grad();
        if (!gradient.defined()) continue;
        if (theirs.erase(parameter.unsafeGetTensorImpl()) == 0 || gradient.scalar_type() != at::kFloat || gradient.is_sparse())
          return {};
        add_to_groups(kinds, gradient);
      }
    }
    return theirs.empty() && kinds.size() == 1 ? std::optional(std::move(kinds.front())) : std::nullopt;
  }

  size_t parameter_count() const {
    size_t count = 0;
    for (const auto& group : optimizer->param_groups()) count += group.params().size();
    return count;
  }

  /// The core, whose optimizer must still be there.
  static Core& of(const AcceleratedOptimizer& prepared) {
    Core& core = *prepared.core_;
    if (core.is_gone()) {
      throw UsageError(
          "A prepared optimizer was used after the optimizer that it was prepared from had been destroyed or moved. prepare "
          "refers to it: keep it alive and in place for the whole run, or give prepare a std::shared_ptr. Between the phases of "
          "a run, call free_memory() and prepare the next phase's model and optimizer.");
    }
    return core;
  }

  bool is_gone() const { return watched && (alive.expired() || is_moved_from(*optimizer)); }

  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::weak_ptr<const void> alive;  // ends with the optimizer
  bool watched;                     // nothing is known of one of the user's own kind
  std::function<void(const AcceleratedOptimizer&)> check_step;
  std::function<void(const torch::optim::Optimizer&)> drop_gradients;
  std::shared_ptr<GradientState> gradient_state;
  std::shared_ptr<GradScaler> scaler;
  std::unique_ptr<OptimizerStep> kernel;
  size_t known_parameters = 0;
  bool in_files = false;  // what is stepped
  bool skipped = false;
  /// What the next step divides gradients by, to clip them, and which ones.
  struct Pending {
    at::Tensor divisor;
    std::vector<SeenGradient> gradients;
    const void* recording;  // of the step in which that was, if any
  };
  std::optional<Pending> pending;
  // Of a step that the device decided about and nobody has asked for since.
  StepVerdict verdict;
  std::function<void()> rollback;
};

AcceleratedOptimizer::AcceleratedOptimizer(torch::optim::Optimizer& optimizer, std::shared_ptr<GradientState> gradient_state,
                                           std::shared_ptr<GradScaler> scaler, bool device_placement)
    : AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer>(std::shared_ptr<void>(), &optimizer),
                           std::move(gradient_state), std::move(scaler), device_placement) {}

AcceleratedOptimizer::AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                           std::shared_ptr<GradientState> gradient_state, std::shared_ptr<GradScaler> scaler,
                                           bool device_placement) {
  if (!optimizer) throw UsageError("prepare was given a null optimizer. Construct it first.");
  core_ = std::make_shared<Core>(std::move(optimizer), std::move(gradient_state), std::move(scaler), device_placement);
}

void AcceleratedOptimizer::step() {
  if (!core_->gradient_state->sync_gradients()) return;
  Core& core = Core::of(*this);
  if (core.check_step) core.check_step(*this);
  if (auto* recording = StepRecording::current()) return core.record(*recording, core_);
  core.step();
}

at::Tensor AcceleratedOptimizer::step(const std::function<at::Tensor()>& closure) {
  if (!core_->gradient_state->sync_gradients()) return {};
  if (!closure) throw UsageError("step was given an empty closure. Call step() without one.");
  Core& core = Core::of(*this);
  if (core_->scaler && core_->scaler->is_enabled()) {
    throw UsageError(
        "step was given a closure, but scaled gradients (mixed_precision fp16) must be checked before the step. Call backward "
        "first, then step without a closure.");
  }
  if (StepRecording::current()) throw NotRecordable("an optimizer steps with a closure");
  core.find_repetitions();
  core.pending.reset();
  return core.kernel->take([&] {
    const at::Tensor loss = closure();
    if (core.check_step) core.check_step(*this);
    if (const auto by = core.take_divisor()) divide_gradients(*core.optimizer, *by);
    return loss;
  });
}

void AcceleratedOptimizer::zero_grad(bool set_to_none) {
  if (!core_->gradient_state->sync_gradients()) return;
  for (const auto& group : Core::of(*this).optimizer->param_groups()) {
    for (const auto& parameter : group.params()) zero_gradient(parameter, set_to_none);
  }
  if (core_->drop_gradients) core_->drop_gradients(*core_->optimizer);
  core_->pending.reset();
  if (core_->scaler) core_->scaler->forget(*core_->optimizer);
}

std::optional<at::Tensor> AcceleratedOptimizer::clip_in_step(const std::vector<at::Tensor>& parameters, double max_norm,
                                                             const ClipGradNormOptions& options) const {
  return Core::of(*this).clip_in_step(parameters, max_norm, options);
}

void AcceleratedOptimizer::clip_now() const { Core::of(*this).clip_now(); }

bool AcceleratedOptimizer::awaits_clip() const { return core_->pending.has_value(); }

void AcceleratedOptimizer::forget_recorded_clip() const {
  if (core_->pending && core_->pending->recording != nullptr) core_->pending.reset();
}

std::vector<at::Tensor> AcceleratedOptimizer::parameters() const {
  std::vector<at::Tensor> parameters;
  for (const auto& group : param_groups()) parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

bool AcceleratedOptimizer::step_was_skipped() const {
  if (core_->scaler && StepRecording::current())
    throw NotRecordable("it asks whether a step was skipped, which only the device knows");
  Core& core = Core::of(*this);
  core.settle();
  return core.skipped;
}

StateDict AcceleratedOptimizer::state_dict() const { return accelerate::state_dict(optimizer()); }

void AcceleratedOptimizer::load_state_dict(const StateDict& state) { accelerate::load_state_dict(optimizer(), state); }

void AcceleratedOptimizer::drop_with_gradients(std::function<void(const torch::optim::Optimizer&)> drop) const {
  core_->drop_gradients = std::move(drop);
}

void AcceleratedOptimizer::check_steps(std::function<void(const AcceleratedOptimizer&)> check) const {
  core_->check_step = std::move(check);
}

bool AcceleratedOptimizer::is_gone() const { return core_->is_gone(); }

torch::optim::Optimizer& AcceleratedOptimizer::optimizer() const {
  Core& core = Core::of(*this);
  if (!StepRecording::current()) core.settle();
  return *core.optimizer;
}

std::vector<torch::optim::OptimizerParamGroup>& AcceleratedOptimizer::param_groups() const {
  return Core::of(*this).optimizer->param_groups();
}

const std::shared_ptr<GradScaler>& AcceleratedOptimizer::scaler() const { return core_->scaler; }

bool AcceleratedOptimizer::operator==(const AcceleratedOptimizer& other) const {
  return core_->optimizer == other.core_->optimizer;
}

}  // namespace accelerate
