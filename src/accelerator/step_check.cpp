#include "accelerator/step_check.h"

#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

#include "core/source_line.h"
#include "parallel/data_parallel.h"
#include "parallel/known_parameters.h"
#include "parallel/replica_check.h"
#include "training/step_recording.h"

namespace accelerate::detail {
namespace {

constexpr int64_t kStepsBetweenComparisons = 10;

std::vector<std::shared_ptr<ModelCore>> alive(const std::vector<std::weak_ptr<ModelCore>>& models) {
  std::vector<std::shared_ptr<ModelCore>> alive;
  for (const auto& each : models) {
    if (auto model = each.lock()) alive.push_back(std::move(model));
  }
  return alive;
}

bool is_joined(const std::shared_ptr<ModelCore>& model) { return model->data_parallel() && model->data_parallel()->joined(); }

size_t parameter_count(const AcceleratedOptimizer& optimizer) {
  size_t count = 0;
  for (const auto& group : optimizer.param_groups()) count += group.params().size();
  return count;
}

/// All parameters of an optimizer and of prepared models.
std::vector<NamedParameter> all_parameters(const AcceleratedOptimizer& optimizer,
                                           const std::vector<std::shared_ptr<ModelCore>>& models) {
  std::vector<NamedParameter> all;
  for (const auto& model : models) {
    if (model->evaluation_mode()) continue;
    auto named = named_parameters_of(model->module());
    std::move(named.begin(), named.end(), std::back_inserter(all));
  }
  size_t number = 0;
  for (const auto& parameter : optimizer.parameters())
    all.push_back({fmt::format("number {} of an optimizer", number++), parameter});
  return all;
}

/// Whether an optimizer has all trained parameters of a model.
bool covers(const std::unordered_set<const void*>& own, const ModelCore& model) {
  const auto parameters = model.stepped_parameters();
  return std::all_of(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
    return !parameter.defined() || !parameter.requires_grad() || own.contains(parameter.unsafeGetTensorImpl());
  });
}

/// Those of the optimizer that no model has are stepped with the gradients of each rank.
void warn_of_unprepared_parameters(const AcceleratedOptimizer& optimizer, const std::vector<std::shared_ptr<ModelCore>>& models) {
  if (models.empty() || !models.front()->state().use_distributed() || !models.front()->state().is_main_process()) return;
  auto unprepared = tensors_of(optimizer.parameters());
  for (const auto& model : models) {
    for (const auto& parameter : model->stepped_parameters()) unprepared.erase(parameter.unsafeGetTensorImpl());
  }
  const auto parameters = optimizer.parameters();
  const auto count = std::count_if(parameters.begin(), parameters.end(), [&](const auto& parameter) {
    return parameter.requires_grad() && unprepared.contains(parameter.unsafeGetTensorImpl());
  });
  if (count == 0) return;
  get_logger("accelerate")
      .warning(
          {.main_process_only = false},
          "A prepared optimizer steps {} of {} parameters that belong to no prepared model: their gradients are not averaged, "
          "and their values will diverge between the {} ranks. Register them in a module, and give it to accelerator.prepare.",
          count, parameters.size(), models.front()->state().num_processes());
}

}  // namespace

std::unordered_set<const void*> tensors_of(const std::vector<at::Tensor>& parameters) {
  std::unordered_set<const void*> tensors;
  for (const auto& parameter : parameters) tensors.insert(parameter.unsafeGetTensorImpl());
  return tensors;
}

bool shares_any(const std::unordered_set<const void*>& tensors, const std::vector<at::Tensor>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const auto& parameter) { return tensors.contains(parameter.unsafeGetTensorImpl()); });
}

void StepCheck::find_stepped_models(const AcceleratedOptimizer& optimizer) {
  const auto models = alive(*models_);
  const auto own = tensors_of(optimizer.parameters());
  check_tied_by_memory(all_parameters(optimizer, models));
  stepped_.clear();
  for (const auto& model : models) {
    if (!shares_any(own, model->stepped_parameters())) continue;
    stepped_.push_back({.model = model, .is_whole = covers(own, *model)});
    const auto unknown = model->unknown_parameters();
    if (unknown.empty()) continue;
    throw UsageError(
        fmt::format("{} got parameters after it was prepared{}: {}. Their gradients are not averaged over the ranks. Register "
                    "all parameters before prepare, or call free_memory() and prepare everything again.",
                    model->module().name(), at_line(model->where()), fmt::join(unknown, ", ")));
  }
  warn_of_unprepared_parameters(optimizer, models);
}

void StepCheck::operator()(const AcceleratedOptimizer& optimizer) {
  if (const auto count = parameter_count(optimizer); count != known_parameters_) {
    find_stepped_models(optimizer);
    known_parameters_ = count;
  }
  std::vector<std::shared_ptr<ModelCore>> models;
  for (const auto& stepped : stepped_) {
    auto model = stepped.model.lock();
    if (!model) continue;
    model->before_step(stepped.is_whole);
    models.push_back(std::move(model));
  }
  if (models.empty() || !models.front()->state().debug() || StepRecording::current()) return;
  // In join_uneven_inputs ranks take different numbers of steps.
  if (std::any_of(models.begin(), models.end(), is_joined) || ++steps_ % kStepsBetweenComparisons != 0) return;
  const auto difference = replicas_that_differ(models.front()->state(), models, "step", models.front()->where());
  if (!difference.empty()) throw DistributedError("Before step " + std::to_string(steps_) + " " + difference);
}

}  // namespace accelerate::detail
