#include <accelerate/accelerator/preparation.h>
#include <accelerate/core/error.h>
#include <accelerate/data/prepared_loader.h>
#include <accelerate/training/find_executable_batch_size.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

#include "accelerator/option_resolution.h"
#include "accelerator/step_check.h"
#include "distributed/communicator.h"
#include "sharding/deepspeed_config.h"
#include "sharding/sharded_gradients.h"
#include "sharding/sharded_model.h"
#include "training/gradient_buffers.h"

namespace accelerate {

using namespace detail;

namespace {

/// `item` takes the place of the one that is the same, so that preparing again keeps the order; else it is the last.
template <class Item, class IsSame>
void keep(std::vector<Item>& items, const Item& item, IsSame is_same) {
  const auto found = std::find_if(items.begin(), items.end(), is_same);
  if (found == items.end()) {
    items.push_back(item);
  } else {
    *found = item;
  }
}

/// For gradients of a step whose clipping was configured and not written into the loop.
void clip_before_step(const AcceleratedOptimizer& optimizer, const std::vector<std::weak_ptr<ModelCore>>& models, double norm) {
  if (const auto& scaler = optimizer.scaler(); scaler && !scaler->is_unscaled(optimizer.optimizer()))
    scaler->unscale_(optimizer.optimizer());
  std::vector<std::shared_ptr<ModelCore>> alive;
  std::vector<const ShardedModel*> sharded;
  for (const auto& each : models) {
    if (auto model = each.lock(); model && model->sharded()) {
      sharded.push_back(model->sharded());
      alive.push_back(std::move(model));
    }
  }
  ShardedGradients(sharded, optimizer.parameters()).clip_norm(norm, {});
}

/// A rank sees its own shards: whether gradients overflowed anywhere is agreed on by all.
std::function<void(at::Tensor&)> found_inf_reduction(const ProcessState& state) {
  if (!state.use_distributed()) return {};
  return [state](at::Tensor& found) {
    at::Tensor any = found.reshape({1});
    state.communicator()->all_reduce(any, c10d::ReduceOp::MAX, "step", std::source_location::current());
    found = any.reshape({});
  };
}

}  // namespace

ProcessState Preparation::join(AcceleratorOptions& options, std::shared_ptr<const DeepSpeedSettings>& deepspeed) {
  deepspeed = resolve_options(options, process_environment);
  return ProcessState({.cpu = options.cpu, .process_group = options.process_group, .timeout = options.timeout});
}

Preparation::Preparation(AcceleratorOptions options) : Preparation(std::move(options), nullptr) {}

Preparation::Preparation(AcceleratorOptions options, std::shared_ptr<const DeepSpeedSettings> deepspeed)
    : ProcessControl(join(options, deepspeed)),
      deepspeed_(std::move(deepspeed)),
      options_(std::move(options)),
      gradients_(std::make_shared<GradientState>(options_.gradient_accumulation_steps, options_.gradient_accumulation,
                                                 [loaders = active_loaders_] { return loaders->end_of_dataloader(); })) {
  if (const auto dtype = options_.gradient_accumulation.dtype) buffers_ = std::make_shared<GradientBuffers>(*dtype);
}

Preparation::~Preparation() = default;

void Preparation::check_placements(const PrepareOptions& options, size_t objects) {
  if (options.device_placement.empty() || options.device_placement.size() == objects) return;
  throw UsageError("prepare was given " + std::to_string(objects) + " objects and " +
                   std::to_string(options.device_placement.size()) +
                   " values of device_placement: expected one for each object.");
}

std::shared_ptr<ModelCore> Preparation::model_core(std::shared_ptr<torch::nn::Module> module, const PrepareModelOptions& options,
                                                   std::source_location where) {
  for (const auto& model : models_) {
    if (&model->module() == module.get() && model->evaluation_mode() == options.evaluation_mode) return model;
  }
  const ModelOptions how{.place = options.device_placement.value_or(options_.device_placement),
                         .evaluation_mode = options.evaluation_mode,
                         .ddp = options_.ddp,
                         .fsdp = fsdp_options(),
                         .autocast = autocast_dtype(mixed_precision(), device().type())};
  auto model = std::make_shared<ModelCore>(std::move(module), state(), how, where);
  keep_model(model);
  return model;
}

std::optional<FsdpOptions> Preparation::fsdp_options() const {
  auto fsdp = options_.fsdp;
  if (!fsdp) return fsdp;
  if (!fsdp->mixed_precision) {
    if (const auto dtype = autocast_dtype(mixed_precision(), device().type()))
      fsdp->mixed_precision = FsdpMixedPrecision{*dtype, {}};
  }
  return fsdp;
}

void Preparation::keep_model(const std::shared_ptr<ModelCore>& model) {
  // One entry for a module: its checkpoint would be written twice otherwise. What all-reduces its gradients stays, or preparing
  // it again would make another one.
  const auto is_same = [&](const auto& other) { return &other->module() == &model->module(); };
  const auto found = std::find_if(models_.begin(), models_.end(), is_same);
  if (found == models_.end() || !model->evaluation_mode() || (*found)->evaluation_mode()) keep(models_, model, is_same);
  *step_models_ = {models_.begin(), models_.end()};
  note_shared_parameters(*model);
}

/// A module and a part of it, both prepared: passes through one reach parameters of the other, and are synchronised.
void Preparation::note_shared_parameters(ModelCore& model) const {
  if (model.sharded()) return;
  const auto own = tensors_of(model.parameters());
  for (const auto& other : models_) {
    if (&other->module() == &model.module() || !shares_any(own, other->parameters())) continue;
    model.share_parameters();
    other->share_parameters();
  }
}

/// A batch size that DeepSpeed's configuration gives must be that of the run.
void Preparation::check_batch_size(const AnyDataLoader& loader) const {
  if (!deepspeed_) return;
  std::optional<int64_t> batch = loader.batch_size();
  if (batch && options_.dataloader.split_batches) *batch /= num_processes();
  check_train_batch_size(*deepspeed_, batch, gradients_->num_steps(), num_processes());
}

AnyDataLoader Preparation::prepared_loader(const AnyDataLoader& loader, const PlacementOptions& options) {
  check_batch_size(loader);
  auto prepared = prepare_loader(loader, {.state = state(),
                                          .active_loaders = active_loaders_,
                                          .configuration = options_.dataloader,
                                          .put_on_device = options.device_placement.value_or(options_.device_placement),
                                          .rng_types = options_.rng_types});
  keep(loaders_, prepared, [&](const auto& other) { return other.core() == prepared.core(); });
  return prepared;
}

/// First: which kernels step it is decided by what it steps.
void Preparation::shard_optimizer(torch::optim::Optimizer& optimizer) {
  for (const auto& model : models_) {
    if (model->sharded() && model->sharded()->adopt(optimizer) && scaler_)
      scaler_->reduce_found_inf(optimizer, found_inf_reduction(model->state()));
  }
}

AcceleratedOptimizer Preparation::prepare_optimizer(torch::optim::Optimizer& optimizer, const PlacementOptions& options) {
  shard_optimizer(optimizer);
  return keep_optimizer(
      AcceleratedOptimizer(optimizer, gradients_, scaler_, options.device_placement.value_or(options_.device_placement)));
}

AcceleratedOptimizer Preparation::prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                                    const PlacementOptions& options) {
  if (!optimizer) throw UsageError("prepare was given a null optimizer.");
  shard_optimizer(*optimizer);
  return keep_optimizer(AcceleratedOptimizer(std::move(optimizer), gradients_, scaler_,
                                             options.device_placement.value_or(options_.device_placement)));
}

AcceleratedOptimizer Preparation::prepare_optimizer(AcceleratedOptimizer optimizer, const PlacementOptions&) {
  return keep_optimizer(std::move(optimizer));
}

AcceleratedOptimizer Preparation::keep_optimizer(AcceleratedOptimizer optimizer) {
  const auto own = tensors_of(optimizer.parameters());
  const auto is_stepped = [&](const auto& model) { return shares_any(own, model->stepped_parameters()); };
  if (std::none_of(models_.begin(), models_.end(), is_stepped)) {
    throw UsageError(
        "prepare was given an optimizer none of whose parameters belongs to a prepared model, so its steps would "
        "differ between processes. Prepare the model before it, or with it in one call.");
  }
  optimizer.check_steps([check = StepCheck(step_models_), models = step_models_,
                         norm = options_.gradient_clipping](const AcceleratedOptimizer& stepped) mutable {
    check(stepped);
    if (norm) clip_before_step(stepped, *models, *norm);
  });
  std::vector<std::weak_ptr<ModelCore>> sharded;
  for (const auto& model : models_) {
    if (model->sharded() && is_stepped(model)) sharded.push_back(model);
  }
  if (!sharded.empty()) {
    optimizer.drop_with_gradients([sharded = std::move(sharded)](const torch::optim::Optimizer& stepper) {
      for (const auto& each : sharded) {
        if (const auto model = each.lock()) model->sharded()->gradients_dropped(stepper);
      }
    });
  }
  keep(optimizers_, optimizer, [&](const auto& other) { return other == optimizer; });
  return optimizer;
}

std::vector<torch::optim::Optimizer*> Preparation::prepared_optimizers() const {
  std::vector<torch::optim::Optimizer*> prepared;
  for (const auto& optimizer : optimizers_) {
    if (!optimizer.is_gone()) prepared.push_back(&optimizer.optimizer());
  }
  return prepared;
}

SchedulerRule Preparation::scheduler_rule(torch::optim::Optimizer* optimizer) const {
  const auto found = std::find_if(optimizers_.begin(), optimizers_.end(), [&](const auto& prepared) {
    return !prepared.is_gone() && &prepared.optimizer() == optimizer;
  });
  if (found == optimizers_.end()) {
    throw UsageError(
        "prepare was given a scheduler whose optimizer was not prepared. Prepare the optimizer before it, or with it in one "
        "call.");
  }
  return {.gradients = gradients_,
          .optimizers = {{optimizer, [prepared = *found] { return prepared.step_was_skipped(); }}},
          .num_processes = num_processes(),
          .split_batches = options_.dataloader.split_batches,
          .step_with_optimizer = options_.step_scheduler_with_optimizer};
}

AcceleratedScheduler Preparation::keep_scheduler(AcceleratedScheduler scheduler) {
  keep(schedulers_, scheduler, [&](const auto& other) { return other == scheduler; });
  return scheduler;
}

void Preparation::free_memory() {
  schedulers_.clear();
  optimizers_.clear();
  loaders_.clear();
  models_.clear();
  gradients_->set_step(0);
  if (buffers_) buffers_ = std::make_shared<GradientBuffers>(*options_.gradient_accumulation.dtype);
  clear_device_cache();
}

}  // namespace accelerate
