#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <accelerate/core/error.h>
#include <accelerate/training/grad_scaler.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

#include "training/step_recording.h"
#include "training/tensor_group.h"

namespace accelerate {

using namespace detail;
namespace {

std::vector<TensorGroup> scaled_gradients_of(torch::optim::Optimizer& optimizer) {
  std::vector<TensorGroup> kinds;
  for (auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      const auto gradient = parameter.grad().is_sparse() ? parameter.grad()._values() : parameter.grad();
      if (gradient.scalar_type() == at::kHalf) {
        throw UsageError(
            "GradScaler: a parameter has float16 gradients, which cannot be unscaled without loss. Keep weights in "
            "float32 and let mixed_precision fp16 cast them.");
      }
      add_to_groups(kinds, gradient);
    }
  }
  return kinds;
}

/// Divides all gradients, and returns for each device whether one was not finite.
std::vector<at::Tensor> unscale_gradients(const std::vector<TensorGroup>& kinds, const at::Tensor& scale) {
  // A reciprocal of float32 may be off in its last bit.
  const auto inverse = scale.to(at::kDouble).reciprocal().to(at::kFloat);
  std::vector<at::Tensor> found_inf;
  for (const auto& kind : kinds) {
    auto found = std::find_if(found_inf.begin(), found_inf.end(),
                              [&](const at::Tensor& candidate) { return candidate.device() == kind.device; });
    if (found == found_inf.end())
      found = found_inf.insert(found, at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(kind.device)));
    at::_amp_foreach_non_finite_check_and_unscale_(kind.tensors, *found, inverse.to(kind.device, at::kFloat, true));
  }
  return found_inf;
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : options_(options) {
  if (options.growth_factor <= 1)
    throw UsageError("GradScaler: growth_factor is " + std::to_string(options.growth_factor) + ": expected more than 1.");
  if (options.backoff_factor >= 1)
    throw UsageError("GradScaler: backoff_factor is " + std::to_string(options.backoff_factor) + ": expected less than 1.");
}

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  if (!is_enabled()) return loss;
  if (!scale_.defined()) {
    const auto options = at::TensorOptions().device(loss.device());
    scale_ = at::full({}, options_.init_scale, options.dtype(at::kFloat));
    growth_tracker_ = at::full({}, init_growth_tracker_, options.dtype(at::kInt));
  }
  // Not the factor itself: that moves in place, and autograd keeps this one.
  const auto applied = scale_.to(loss.device(), at::kFloat, /*non_blocking=*/true, /*copy=*/true);
  auto* recording = StepRecording::current();
  if (recording) recording->add({.run = [this, applied] { note_scaled(applied, nullptr); }});
  note_scaled(applied, recording);
  return loss.mul(applied);
}

void GradScaler::note_scaled(const at::Tensor& scale, const void* recording) {
  applied_scale_ = scale;
  applied_in_ = recording;
  // Without gradients nothing was unscaled.
  std::erase_if(progress_,
                [](const auto& item) { return item.second.stage == Stage::unscaled && item.second.found_inf.empty(); });
  for (auto& item : progress_) item.second.outdated = true;
}

bool GradScaler::awaits_step() const {
  return std::any_of(progress_.begin(), progress_.end(), [](const auto& item) { return item.second.stage == Stage::unscaled; });
}

void GradScaler::check_scaled(const char* call) const {
  if (scale_.defined()) return;
  throw UsageError(std::string("GradScaler::") + call +
                   " was called before any loss was scaled. Scale the loss before its "
                   "backward pass: accelerator.backward(loss), or scaler.scale(loss).backward().");
}

GradScaler::Progress& GradScaler::begin_unscaling(torch::optim::Optimizer& optimizer) {
  check_scaled("unscale_");
  auto& progress = progress_[&optimizer];
  if (progress.stage == Stage::unscaled) {
    throw UsageError(
        "GradScaler::unscale_ was called twice for an optimizer before its step: its gradients are unscaled "
        "already. Call it, or clip gradients, once for each step; with accumulation, when sync_gradients() is true.");
  }
  if (progress.stage == Stage::stepped)
    throw UsageError("GradScaler::unscale_ was called after the step of the optimizer. Call it between backward and step.");
  if (StepRecording::current() && applied_in_ != StepRecording::current())
    throw NotRecordable("it unscales gradients of a loss that was scaled outside the step");
  progress.recording = StepRecording::current();
  has_unscaled_ = true;
  return progress;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) return;
  auto& progress = begin_unscaling(optimizer);
  const at::NoGradGuard no_grad;
  progress.found_inf = unscale_gradients(scaled_gradients_of(optimizer), applied_scale_);
  if (const auto reduction = reductions_.find(&optimizer); reduction != reductions_.end() && reduction->second) {
    for (auto& found : progress.found_inf) reduction->second(found);
  }
  progress.stage = Stage::unscaled;
}

void GradScaler::reduce_found_inf(const torch::optim::Optimizer& optimizer, std::function<void(at::Tensor&)> reduce) {
  reductions_[&optimizer] = std::move(reduce);
}

at::Tensor GradScaler::unscale_in_step(torch::optim::Optimizer& optimizer, const at::Tensor& found_inf) {
  auto& progress = begin_unscaling(optimizer);
  progress.found_inf = {found_inf};
  progress.stage = Stage::unscaled;
  return applied_scale_;
}

bool GradScaler::is_unscaled(const torch::optim::Optimizer& optimizer) const {
  const auto progress = progress_.find(&optimizer);
  return progress != progress_.end() && progress->second.stage == Stage::unscaled && !progress->second.outdated;
}

void GradScaler::forget(const torch::optim::Optimizer& optimizer) {
  // After a step that update has not seen, what it found is still needed.
  const auto progress = progress_.find(&optimizer);
  if (progress != progress_.end() && progress->second.stage == Stage::unscaled) progress_.erase(progress);
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  return step(optimizer, [&] { optimizer.step(); });
}

bool GradScaler::step(torch::optim::Optimizer& optimizer, const std::function<void()>& take_step) {
  if (!is_enabled()) {
    take_step();
    return true;
  }
  const auto found_inf = begin_step(optimizer);
  const bool finite =
      std::all_of(found_inf.begin(), found_inf.end(), [](const at::Tensor& found) { return found.item<float>() == 0; });
  if (finite) take_step();
  end_step(optimizer);
  return finite;
}

std::vector<at::Tensor> GradScaler::begin_step(torch::optim::Optimizer& optimizer, bool are_unchanged) {
  check_scaled("step");
  auto& progress = progress_[&optimizer];
  if (progress.stage == Stage::stepped)
    throw UsageError("GradScaler::step was called twice for an optimizer. Call update after a step.");
  // The turn of another optimizer, with a loss of its own, lies between: these gradients are new.
  if (progress.stage == Stage::unscaled && progress.outdated && !are_unchanged) progress = {};
  if (progress.stage == Stage::unscaled && StepRecording::current() && progress.recording != StepRecording::current())
    throw NotRecordable("gradients were unscaled before it");
  if (progress.stage == Stage::ready) unscale_(optimizer);
  if (progress.found_inf.empty()) {
    throw UsageError(
        "GradScaler::step: no parameter of the optimizer has a gradient. Call backward before it, on a loss that "
        "depends on these parameters.");
  }
  return progress.found_inf;
}

void GradScaler::end_step(torch::optim::Optimizer& optimizer) { progress_[&optimizer].stage = Stage::stepped; }

void GradScaler::move_scale(const std::vector<at::Tensor>& found_inf) {
  if (found_inf.empty()) throw UsageError("GradScaler::update: no optimizer has stepped since the last update.");
  auto any = found_inf.front().to(scale_.device(), at::kFloat, /*non_blocking=*/true, /*copy=*/true);
  for (size_t i = 1; i < found_inf.size(); ++i) any.add_(found_inf[i].to(scale_.device(), at::kFloat, /*non_blocking=*/true));
  at::_amp_update_scale_(scale_, growth_tracker_, any, options_.growth_factor, options_.backoff_factor, options_.growth_interval);
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!is_enabled()) return;
  check_scaled("update");
  const at::NoGradGuard no_grad;
  if (new_scale) {
    scale_.fill_(*new_scale);
  } else {
    std::vector<at::Tensor> found_inf;
    for (const auto& entry : progress_)
      found_inf.insert(found_inf.end(), entry.second.found_inf.begin(), entry.second.found_inf.end());
    move_scale(found_inf);
  }
  progress_.clear();
}

void GradScaler::update_after(const torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) return;
  check_scaled("update_after");
  const at::NoGradGuard no_grad;
  const auto found = progress_[&optimizer].found_inf;
  progress_.erase(&optimizer);
  move_scale(found);
}

double GradScaler::get_scale() const {
  if (!is_enabled()) return 1;
  return scale_.defined() ? scale_.item<double>() : options_.init_scale;
}

int64_t GradScaler::growth_tracker() const {
  if (!is_enabled()) return 0;
  return growth_tracker_.defined() ? growth_tracker_.item<int64_t>() : init_growth_tracker_;
}

StateDict GradScaler::state_dict() const {
  if (!is_enabled()) return {};
  return {{"scale", get_scale()},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", options_.growth_interval},
          {"_growth_tracker", growth_tracker()}};
}

void GradScaler::load_state_dict(const StateDict& state) {
  if (!is_enabled()) return;
  if (state.empty()) {
    throw UsageError(
        "GradScaler::load_state_dict was given an empty state: it was saved by a disabled scaler. Load it into a disabled "
        "scaler, or do not load it.");
  }
  GradScalerOptions loaded = options_;
  loaded.init_scale = state.at("scale").get<double>();
  loaded.growth_factor = state.at("growth_factor").get<double>();
  loaded.backoff_factor = state.at("backoff_factor").get<double>();
  loaded.growth_interval = state.at("growth_interval").get<int64_t>();
  init_growth_tracker_ = state.at("_growth_tracker").get<int64_t>();
  options_ = loaded;
  if (!scale_.defined()) return;
  // In place: recorded steps know them by their memory.
  scale_.fill_(options_.init_scale);
  growth_tracker_.fill_(init_growth_tracker_);
}

}  // namespace accelerate
