#include <accelerate/accelerator/preparation.h>
#include <accelerate/core/error.h>
#include <accelerate/data/prepared_loader.h>
#include <accelerate/training/find_executable_batch_size.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

#include "accelerator/step_check.h"
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

/// A run that was configured for it must not train in another way instead: plain data parallelism has other memory and, with
/// several kinds of parallelism, other results.
void check_supported(const Environment& environment) {
  struct Unsupported {
    const char *variable, *what, *key;
  };
  constexpr Unsupported kFlags[] = {{"ACCELERATE_USE_FSDP", "fully sharded data parallelism (FSDP)", "use_fsdp"},
                                    {"ACCELERATE_USE_DEEPSPEED", "DeepSpeed", "use_deepspeed"},
                                    {"ACCELERATE_USE_MEGATRON_LM", "Megatron-LM", "use_megatron_lm"}};
  for (const auto& flag : kFlags) {
    if (flag_from(environment, flag.variable, false))
      throw ConfigError(std::string(flag.variable) + "=" + *environment(flag.variable) + " asks for " + flag.what +
                        ", which this version does not support. Launch without " + flag.key +
                        " (a flag, or a key of the config file) to train with data parallelism.");
  }
  if (!flag_from(environment, "ACCELERATE_USE_PARALLELISM_CONFIG", false)) return;
  // Replicas alone are what data parallelism is.
  for (const char* variable : {"PARALLELISM_CONFIG_DP_SHARD_SIZE", "PARALLELISM_CONFIG_TP_SIZE", "PARALLELISM_CONFIG_CP_SIZE",
                               "PARALLELISM_CONFIG_SP_SIZE"}) {
    const auto size = integer_from(environment, {variable});
    if (size.value_or(1) != 1)
      throw ConfigError(std::string(variable) + "=" + std::to_string(*size) +
                        " asks for a kind of parallelism that this version does not support: only replicas "
                        "(PARALLELISM_CONFIG_DP_REPLICATE_SIZE) are. Launch without use_parallelism_config, or with sizes of 1.");
  }
}

/// Options that have no meaning yet: what was asked for and would be ignored is refused. ACCELERATE_DOWNCAST_BF16 speaks of TPUs
/// alone and is ignored elsewhere, as in Python.
void check_meaningful(const AcceleratorOptions& options) {
  if (options.downcast_bf16) {
    throw UsageError("downcast_bf16 was set: it is for XLA devices, which this version does not support. Leave it off.");
  }
  if (!options.project.logging_dir.empty()) {
    throw UsageError("project.logging_dir is '" + options.project.logging_dir +
                     "': it is for trackers, which this version does not have. Leave it empty.");
  }
}

}  // namespace

/// What can be wrong with the options is found out before the others are joined: it is no reason to keep them waiting.
ProcessState Preparation::join(AcceleratorOptions& options) {
  check_meaningful(options);
  check_supported(process_environment);
  if (!options.mixed_precision) {
    const auto text = process_environment("ACCELERATE_MIXED_PRECISION");
    options.mixed_precision = text ? parse_precision(*text, "ACCELERATE_MIXED_PRECISION") : Precision::no;
  }
  const auto text = process_environment("ACCELERATE_GRADIENT_ACCUMULATION_STEPS");
  const auto steps = integer_from(process_environment, {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS"});
  if (text && steps.value_or(0) < 1)
    throw ConfigError("ACCELERATE_GRADIENT_ACCUMULATION_STEPS=" + *text + ": expected an integer of at least 1.");
  if (steps) options.gradient_accumulation_steps = *steps;
  GradientState(options.gradient_accumulation_steps);
  const auto dtype = options.gradient_accumulation.dtype;
  if (dtype && !c10::isFloatingType(*dtype)) {
    throw UsageError(std::string("gradient_accumulation.dtype is ") + c10::toString(*dtype) +
                     ": expected a floating-point dtype.");
  }
  return ProcessState({.cpu = options.cpu, .process_group = options.process_group, .timeout = options.timeout});
}

Preparation::Preparation(AcceleratorOptions options)
    : ProcessControl(join(options)),
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
                         .autocast = autocast_dtype(mixed_precision(), device().type())};
  auto model = std::make_shared<ModelCore>(std::move(module), state(), how, where);
  keep_model(model);
  return model;
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
  const auto own = tensors_of(model.parameters());
  for (const auto& other : models_) {
    if (&other->module() == &model.module() || !shares_any(own, other->parameters())) continue;
    model.share_parameters();
    other->share_parameters();
  }
}

AnyDataLoader Preparation::prepared_loader(const AnyDataLoader& loader, const PlacementOptions& options) {
  auto prepared = prepare_loader(loader, {.state = state(),
                                          .active_loaders = active_loaders_,
                                          .configuration = options_.dataloader,
                                          .put_on_device = options.device_placement.value_or(options_.device_placement),
                                          .rng_types = options_.rng_types});
  keep(loaders_, prepared, [&](const auto& other) { return other.core() == prepared.core(); });
  return prepared;
}

AcceleratedOptimizer Preparation::prepare_optimizer(torch::optim::Optimizer& optimizer, const PlacementOptions& options) {
  return keep_optimizer(
      AcceleratedOptimizer(optimizer, gradients_, scaler_, options.device_placement.value_or(options_.device_placement)));
}

AcceleratedOptimizer Preparation::prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                                    const PlacementOptions& options) {
  if (!optimizer) throw UsageError("prepare was given a null optimizer.");
  return keep_optimizer(AcceleratedOptimizer(std::move(optimizer), gradients_, scaler_,
                                             options.device_placement.value_or(options_.device_placement)));
}

AcceleratedOptimizer Preparation::prepare_optimizer(AcceleratedOptimizer optimizer, const PlacementOptions&) {
  return keep_optimizer(std::move(optimizer));
}

AcceleratedOptimizer Preparation::keep_optimizer(AcceleratedOptimizer optimizer) {
  const auto own = tensors_of(optimizer.parameters());
  const auto is_stepped = [&](const auto& model) { return shares_any(own, model->parameters()); };
  if (std::none_of(models_.begin(), models_.end(), is_stepped)) {
    throw UsageError(
        "prepare was given an optimizer none of whose parameters belongs to a prepared model, so its steps would "
        "differ between processes. Prepare the model before it, or with it in one call.");
  }
  optimizer.check_steps(StepCheck(step_models_));
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
