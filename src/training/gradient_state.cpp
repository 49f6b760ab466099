#include <accelerate/core/error.h>
#include <accelerate/training/gradient_state.h>

#include <algorithm>
#include <string>

#include "training/step_recording.h"

namespace accelerate {

GradientState::GradientState(int num_steps, GradientAccumulationOptions options) : options_(options) { set_num_steps(num_steps); }

void GradientState::set_num_steps(int num_steps) {
  if (num_steps < 1) throw UsageError("gradient_accumulation_steps=" + std::to_string(num_steps) + ": expected at least 1.");
  num_steps_ = num_steps;
}

bool GradientState::count_batch() {
  if (auto* recording = detail::StepRecording::current()) recording->add({.run = [this] { count_batch(); }});
  ++counted_;
  sync_gradients_ = would_sync();
  step_ = options_.sync_with_dataloader && end_of_dataloader() ? 0 : step_ + 1;
  return sync_gradients_;
}

bool GradientState::would_sync(int later) const {
  return (options_.sync_with_dataloader && end_of_dataloader()) || (step_ + 1 + later) % num_steps_ == 0;
}

void GradientState::enter(std::shared_ptr<const LoaderPosition> loader) { loaders_.push_back(std::move(loader)); }

void GradientState::leave(const LoaderPosition* loader) {
  std::erase_if(loaders_, [&](const auto& entered) { return entered.get() == loader; });
}

bool GradientState::end_of_dataloader() const { return in_dataloader() && loaders_.back()->end_of_dataloader; }

int64_t GradientState::remainder() const { return in_dataloader() ? loaders_.back()->remainder : -1; }

void GradientState::data_ended() const {
  if (on_end_of_data_ && !in_dataloader()) on_end_of_data_();
}

}  // namespace accelerate
