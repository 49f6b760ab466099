#include <ATen/TensorOperators.h>
#include <ATen/ops/div.h>
#include <accelerate/accelerator/accelerator.h>
#include <accelerate/core/error.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "capture/step_capture.h"
#include "run_state/checkpoint_manager.h"
#include "run_state/run_parts.h"
#include "sharding/sharded_gradients.h"
#include "training/gradient_buffers.h"

namespace accelerate {

using namespace detail;

Accelerator::Accelerator(AcceleratorOptions options)
    : Preparation(std::move(options)), checkpoints_(std::make_unique<CheckpointManager>(options_.project)) {
  if (autocast_dtype(mixed_precision(), device().type()) == at::kHalf)
    scaler_ = std::make_shared<GradScaler>(options_.grad_scaler);
  warn_where_autocast_is_missing(mixed_precision(), device().type(), get_logger("accelerate"));
}

Accelerator::~Accelerator() = default;

std::string to_string(const Accelerator& accelerator) {
  return to_string(accelerator.state()) + "\nMixed precision type: " + to_string(accelerator.mixed_precision()) + "\n";
}

// --- Taking a step -------------------------------------------------------------------------------------------------------

NoSyncScope Accelerator::accumulate(const std::vector<std::shared_ptr<ModelCore>>& models,
                                    std::optional<std::source_location> where) {
  const bool is_first = gradients_->sync_gradients();
  if (gradients_->num_steps() > 1) {
    for (const auto& model : models) model->accumulate(is_first, where);
  }
  const bool synchronises = gradients_->count_batch() || gradients_->options().sync_each_batch;
  return synchronises ? NoSyncScope() : NoSyncScope(models);
}

UnevenInputsScope Accelerator::join_uneven_inputs(const JoinUnevenInputsOptions& options,
                                                  const std::vector<std::shared_ptr<ModelCore>>& models) {
  return UnevenInputsScope(use_distributed() ? JoinScope(models, options.where) : JoinScope(), active_loaders_, loaders_,
                           options.even_batches);
}

void Accelerator::backward(const at::Tensor& loss, const BackwardOptions& options, std::source_location where) {
  if (!loss.defined()) throw UsageError("backward was given an undefined tensor.");
  auto scaled = gradients_->num_steps() == 1 ? loss : loss / gradients_->num_steps();
  if (scaler_) {
    if (scaler_->is_enabled() && optimizers_.empty() && !scaler_->has_unscaled()) {
      for (const auto& model : models_) model->before_scaled_backward(where);
    }
    scaled = scaler_->scale(scaled);
  }
  const auto keep = options.retain_graph || options.create_graph;
  const auto run = [&] { scaled.backward({}, keep, options.create_graph); };
  if (buffers_ && sync_gradients()) buffers_->give_back(trained_parameters());
  run_backward(state(), where, run, models_);
  if (buffers_ && !sync_gradients()) buffers_->collect(trained_parameters());
}

std::vector<at::Tensor> Accelerator::trained_parameters() const {
  std::vector<at::Tensor> parameters;
  for (const auto& model : models_) {
    for (auto& parameter : model->parameters()) parameters.push_back(std::move(parameter));
  }
  return parameters;
}

at::Tensor Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                        const ClipGradNormOptions& options) {
  ClipGradNormOptions now = options;
  if (const ShardedGradients gradients(sharded_models(), parameters); gradients.any()) {
    make_ready_to_clip(gradients.all());
    return gradients.clip_norm(max_norm, options);
  }
  if (std::exchange(now.in_step, false)) {
    for (const auto& optimizer : optimizers_) {
      if (optimizer.is_gone()) continue;
      if (const auto total = optimizer.clip_in_step(parameters, max_norm, now)) return *total;
    }
  }
  make_ready_to_clip(parameters);
  return accelerate::clip_grad_norm_(parameters, max_norm, now);
}

void Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  const auto stepped = ShardedGradients(sharded_models(), parameters).all();
  make_ready_to_clip(stepped);
  accelerate::clip_grad_value_(stepped, clip_value);
}

std::vector<const ShardedModel*> Accelerator::sharded_models() const {
  std::vector<const ShardedModel*> sharded;
  for (const auto& model : models_) {
    if (model->sharded()) sharded.push_back(model->sharded());
  }
  return sharded;
}

void Accelerator::make_ready_to_clip(const std::vector<at::Tensor>& parameters) {
  std::unordered_set<const void*> clipped;
  for (const auto& parameter : parameters) clipped.insert(parameter.unsafeGetTensorImpl());
  const auto is_clipped = [&](const at::Tensor& parameter) { return clipped.contains(parameter.unsafeGetTensorImpl()); };
  for (const auto& optimizer : optimizers_) {
    if (optimizer.is_gone()) continue;
    // Others may not have had their backward pass. And two models of one optimizer may be clipped one after the other.
    const auto own = optimizer.parameters();
    if (std::none_of(own.begin(), own.end(), is_clipped)) continue;
    optimizer.clip_now();
    if (scaler_ && !scaler_->is_unscaled(optimizer.optimizer())) scaler_->unscale_(optimizer.optimizer());
  }
}

void Accelerator::unscale_gradients() {
  for (const auto& optimizer : optimizers_) unscale_gradients(optimizer);
}

void Accelerator::unscale_gradients(const AcceleratedOptimizer& optimizer) {
  if (scaler_) scaler_->unscale_(optimizer.optimizer());
}

bool Accelerator::optimizer_step_was_skipped() const {
  return std::any_of(optimizers_.begin(), optimizers_.end(),
                     [](const auto& optimizer) { return !optimizer.is_gone() && optimizer.step_was_skipped(); });
}

std::shared_ptr<StepCapture> Accelerator::step_capture(const CaptureOptions& options, std::source_location where) {
  return std::make_shared<StepCapture>([this] { return run_parts(); }, device(), options, get_logger("accelerate"), where);
}

AutocastScope Accelerator::autocast(const AutocastOptions& options) const {
  for (const auto& model : models_) model->expect_autocast_calls();
  return AutocastScope(mixed_precision(), device().type(), options);
}

}  // namespace accelerate
