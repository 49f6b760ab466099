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

void StepRecording::note_step(const torch::optim::Optimizer& optimizer) {
  note_use_of_gradients();
  stepped_.insert(&optimizer);
}

void StepRecording::begin_with(const std::vector<at::Tensor>& gradients) {
  for (const auto& gradient : gradients) {
    if (gradient.defined()) versions_.emplace(gradient.unsafeGetTensorImpl(), gradient._version());
  }
}

void StepRecording::note_drop(const at::Tensor& gradient) {
  const auto found = versions_.find(gradient.unsafeGetTensorImpl());
  // A backward pass that adds to it raises its version.
  if (!gradients_used_ && found != versions_.end() && found->second == gradient._version()) unseen_.insert(found->first);
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
