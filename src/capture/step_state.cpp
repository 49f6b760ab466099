#include "capture/step_state.h"

#include <ATen/autocast_mode.h>
#include <accelerate/parallel/model.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "sharding/sharded_model.h"

namespace accelerate::detail {
namespace {

template <class T>
void append_bytes(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append_layout(std::string& text, const at::Tensor& tensor) {
  append_bytes(text, tensor.defined());
  if (!tensor.defined()) return;
  append_bytes(text, tensor.scalar_type());
  append_bytes(text, tensor.device());
  append_bytes(text, tensor.layout());
  if (tensor.layout() != at::kStrided) return;
  for (const auto& numbers : {tensor.sizes(), tensor.strides()}) {
    append_bytes(text, numbers.size());
    for (const auto number : numbers) append_bytes(text, number);
  }
}

}  // namespace

StepState::StepState(RunParts parts) : parts_(std::move(parts)) {
  std::erase_if(parts_.optimizers, [](const auto& optimizer) { return optimizer.is_gone(); });  // of an earlier phase
  std::unordered_set<const void*> seen;
  const auto keep_parameters = [&](const std::vector<at::Tensor>& parameters) {
    for (const auto& parameter : parameters) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters_.push_back(parameter);
    }
  };
  for (const auto& model : parts_.models) {
    keep_parameters(model->stepped_parameters());
    if (model->sharded()) sharded_.push_back(model);
    for (const auto& buffer : model->module().buffers()) buffers_.push_back(buffer);
    for (auto& module : model->module().modules()) modules_.push_back(std::move(module));
  }
  for (const auto& optimizer : parts_.optimizers) keep_parameters(optimizer.parameters());
}

void StepState::update() {
  for (const auto& optimizer : parts_.optimizers) optimizer.param_groups();
  for (const auto& model : sharded_) model->sharded()->take_gradient_changes();
  // One that was frozen as a whole synchronises from when it is trained.
  for (const auto& model : parts_.models) {
    const auto& parallel = model->data_parallel();
    if (parallel && std::find(parallel_.begin(), parallel_.end(), parallel) == parallel_.end()) parallel_.push_back(parallel);
  }
}

std::string StepState::kind_of(const StepCall& call, c10::DeviceType device, int counts) const {
  std::string kind = call.inputs.outline;
  for (const auto* tensor : call.inputs.tensors) append_layout(kind, *tensor);
  const GradientState& gradients = *parts_.gradients;
  append_bytes(kind, gradients.num_steps());
  append_bytes(kind, gradients.sync_gradients());
  for (int i = 0; i < counts; ++i) append_bytes(kind, gradients.would_sync(i));
  for (const auto& parameter : parameters_)
    kind += static_cast<char>('a' + 2 * parameter.requires_grad() + parameter.grad().defined());
  for (const auto& model : sharded_) {
    for (const auto& parameter : model->parameters()) kind += parameter.requires_grad() ? 'y' : 'n';
  }
  for (const auto& module : modules_) kind += module->is_training() ? 't' : 'e';
  for (const auto& model : parallel_) {
    kind += static_cast<char>('a' + 4 * model->joined() + 2 * model->syncs().gradients + model->syncs().buffers);
    append_bytes(kind, model->rebuilds());  // the memory of buckets is another one
  }
  append_bytes(kind, c10::GradMode::is_enabled());
  append_bytes(kind, c10::InferenceMode::is_enabled());
  append_bytes(kind, at::autocast::is_autocast_enabled(device));
  append_bytes(kind, at::autocast::get_autocast_dtype(device));
  return kind;
}

bool StepState::is_settled() const {
  return std::all_of(parallel_.begin(), parallel_.end(), [](const auto& model) { return model->is_settled(); });
}

bool StepState::is_joined() const {
  return std::any_of(parallel_.begin(), parallel_.end(), [](const auto& model) { return model->joined(); });
}

std::vector<at::Tensor> StepState::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters_) gradients.push_back(parameter.grad());
  return gradients;
}

void StepState::set_gradients(const std::vector<at::Tensor>& gradients) const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].grad().is_same(gradients[i])) parameters_[i].mutable_grad() = gradients[i];
  }
}

std::vector<const void*> StepState::places() const {
  std::vector<const void*> places;
  for (const auto* tensors : {&parameters_, &buffers_}) {
    for (const auto& tensor : *tensors) places.push_back(tensor.const_data_ptr());
  }
  return places;
}

std::vector<double> StepState::rates() const {
  std::vector<double> rates;
  for (const auto& optimizer : parts_.optimizers) {
    for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  }
  return rates;
}

std::vector<DataParallel::Syncs> StepState::syncs() const {
  std::vector<DataParallel::Syncs> syncs;
  for (const auto& model : parallel_) syncs.push_back(model->syncs());
  return syncs;
}

void StepState::set_syncs(const std::vector<DataParallel::Syncs>& syncs) const {
  for (size_t i = 0; i < syncs.size(); ++i) parallel_[i]->set_syncs(syncs[i]);
}

void StepState::begin_captured() const {
  for (const auto& model : sharded_) model->sharded()->begin_captured();
}

void StepState::end_captured() const {
  for (const auto& model : sharded_) model->sharded()->end_captured();
}

void StepState::abandon_captured() const {
  for (const auto& model : sharded_) model->sharded()->abandon_captured();
}

void StepState::check_recordable() const {
  for (const auto& model : sharded_) model->sharded()->check_recordable();
}

void StepState::forget_recorded() const {
  for (const auto& model : parallel_) model->forget_recorded_pass();
  for (const auto& optimizer : parts_.optimizers) optimizer.forget_recorded_clip();
}

StateBeforeRecording::StateBeforeRecording(const StepState& state)
    : state_(state),
      gradients_(state.gradients()),
      step_(state.parts().gradients->step()),
      sync_gradients_(state.parts().gradients->sync_gradients()),
      syncs_(state.syncs()) {
  if (state.parts().scaler) scaler_ = *state.parts().scaler;
}

void StateBeforeRecording::restore_counts() const {
  state_.parts().gradients->set_step(step_);
  state_.parts().gradients->set_sync_gradients(sync_gradients_);
  state_.set_syncs(syncs_);
}

void StateBeforeRecording::restore_gradients() const {
  state_.abandon_captured();
  state_.set_gradients(gradients_);
  state_.end_captured();
  state_.forget_recorded();
  if (scaler_) *state_.parts().scaler = *scaler_;
}

}  // namespace accelerate::detail
