#include <accelerate/core/error.h>
#include <accelerate/training/gradient_state.h>

#include <string>
#include <utility>

#include "training/step_recording.h"

namespace accelerate {

using namespace detail;

GradientState::GradientState(int num_steps, GradientAccumulationOptions options, std::function<bool()> is_last_batch)
    : options_(options), is_last_batch_(std::move(is_last_batch)) {
  set_num_steps(num_steps);
}

void GradientState::set_num_steps(int num_steps) {
  if (num_steps < 1) throw UsageError("gradient_accumulation_steps=" + std::to_string(num_steps) + ": expected at least 1.");
  num_steps_ = num_steps;
}

bool GradientState::count_batch() {
  if (auto* recording = StepRecording::current()) recording->add({.run = [this] { count_batch(); }});
  ++counted_;
  sync_gradients_ = would_sync();
  step_ = ends_with_data() ? 0 : step_ + 1;
  return sync_gradients_;
}

bool GradientState::would_sync(int later) const { return ends_with_data() || (step_ + 1 + later) % num_steps_ == 0; }

}  // namespace accelerate
