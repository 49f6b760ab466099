#include "training/step_recording.h"

#include <algorithm>
#include <utility>

namespace accelerate::detail {
namespace {

thread_local StepRecording* current_recording = nullptr;

}  // namespace

StepRecording::Scope::Scope(StepRecording& recording) { current_recording = &recording; }

StepRecording::Scope::~Scope() { current_recording = nullptr; }

StepRecording* StepRecording::current() { return current_recording; }

void StepRecording::add(Action action) {
  auto& list = action.asks_for_result && decided_on_device_ ? after_ : before_;
  list.push_back(std::move(action));
}

void StepRecording::note_step(const torch::optim::Optimizer& optimizer) { stepped_.insert(&optimizer); }

void StepRecording::begin_with(const std::vector<at::Tensor>& gradients, std::function<bool()> has_run) {
  for (const auto& gradient : gradients) {
    if (gradient.defined()) before_step_.insert(gradient.unsafeGetTensorImpl());
  }
  has_run_ = std::move(has_run);
}

void StepRecording::note_drop(const at::Tensor& gradient) {
  const auto* dropped = gradient.unsafeGetTensorImpl();
  if (before_step_.contains(dropped) && !has_run_()) unseen_.insert(dropped);
}

bool StepRecording::fits() const {
  const auto is_true = [](const Action& action) { return !action.fits || action.fits(); };
  return std::all_of(before_.begin(), before_.end(), is_true) && std::all_of(after_.begin(), after_.end(), is_true);
}

void StepRecording::run_before() const {
  for (const auto& action : before_) action.run();
}

void StepRecording::run_after() const {
  for (const auto& action : after_) action.run();
}

}  // namespace accelerate::detail
