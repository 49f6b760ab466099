#include "training/fused_call.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "training/step_recording.h"

namespace accelerate::detail {
namespace {

at::Tensor make_number(const at::TensorOptions& options) {
  if (!options.device().is_cpu() && StepRecording::current())
    throw NotRecordable("its optimizer has not yet taken a step like this one");
  return at::empty({}, options);
}

void set_count(at::Tensor& count, int64_t step) {
  if (count.is_cpu()) {
    *count.mutable_data_ptr<float>() = static_cast<float>(step);
  } else {
    count.fill_(step);
  }
}

}  // namespace

void FusedCall::add(const at::Tensor& parameter, FusedState&& state, size_t tensors) {
  parameters.push_back(parameter);
  gradients.push_back(parameter.grad());
  for (size_t i = 0; i < tensors; ++i) states[i].push_back(std::move(state.tensors[i]));
  if (state.steps != nullptr) steps.push_back(state.steps);
}

void FusedCall::clear() {
  group = nullptr;
  begins = false;
  parameters.clear();
  gradients.clear();
  for (auto& tensors : states) tensors.clear();
  steps.clear();
  step_tensors.clear();
}

void FusedCall::begin_recording() {
  share_counts();
  recorded_options = group->options().clone();
}

void FusedCall::make_numbers(size_t counts) {
  const auto options = parameters.front().options();
  if (!numbers || numbers->rate.device() != options.device()) {
    numbers = std::make_shared<StepNumbers>();
    numbers->rate = make_number(options.dtype(options.device().is_cpu() ? at::kDouble : at::kFloat));
  }
  while (numbers->counts.size() < counts) numbers->counts.push_back(make_number(options.dtype(at::kFloat)));
}

void FusedCall::share_counts() {
  firsts_.clear();
  for (size_t i = 0; i < steps.size(); ++i) {
    if (i == 0 || *steps[i] != *steps[firsts_.back()]) firsts_.push_back(i);
  }
  make_numbers(firsts_.size());
  for (size_t i = 0, shared = 0; i < steps.size(); ++i) {
    if (shared + 1 < firsts_.size() && firsts_[shared + 1] == i) ++shared;
    step_tensors.push_back(numbers->counts[shared]);
  }
}

bool FusedCall::shares_rightly() const {
  for (size_t i = 0, shared = 0; i < steps.size(); ++i) {
    if (shared + 1 < firsts_.size() && firsts_[shared + 1] == i) ++shared;
    if (*steps[i] != *steps[firsts_[shared]]) return false;
  }
  return true;
}

void FusedCall::tell_counts() {
  for (size_t i = 0; i < firsts_.size(); ++i) set_count(numbers->counts[i], *steps[firsts_[i]] + 1);
}

void FusedCall::tell_rate() {
  const double lr = group->options().get_lr();
  if (numbers->rate_told == lr) return;
  numbers->rate.fill_(lr);
  numbers->rate_told = lr;
}

}  // namespace accelerate::detail
