#include "capture/step_graph.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace accelerate::detail {
namespace {

/// Raised by everything that writes to a tensor.
std::vector<int64_t> versions_of(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> versions;
  for (const auto& tensor : tensors) versions.push_back(tensor.defined() && !tensor.is_inference() ? tensor._version() : 0);
  return versions;
}

/// Substitutes other tensors for the inputs of a call while it lives.
class OtherInputs {
 public:
  OtherInputs(const Leaves& inputs, const std::vector<at::Tensor>& others) : inputs_(inputs) {
    for (size_t i = 0; i < others.size(); ++i) given_.push_back(std::exchange(*inputs.tensors[i], others[i]));
  }
  ~OtherInputs() {
    for (size_t i = 0; i < given_.size(); ++i) *inputs_.tensors[i] = std::move(given_[i]);
  }
  OtherInputs(const OtherInputs&) = delete;
  OtherInputs& operator=(const OtherInputs&) = delete;

 private:
  const Leaves& inputs_;
  std::vector<at::Tensor> given_;
};

}  // namespace

/// What tells afterwards whether somebody has changed what replays would not.
struct StepGraph::Before {
  std::vector<at::Tensor> gradients;
  std::vector<int64_t> parameters, inputs;
  std::vector<double> rates;
};

void StepGraph::record(GraphDevice& device, const StepCall& call, const OperatorWatch& watch) {
  for (const auto* tensor : call.inputs.tensors) inputs_.push_back(tensor->defined() ? tensor->clone() : at::Tensor());
  const Before before{state_.gradients(), versions_of(state_.parameters()), versions_of(inputs_), state_.rates()};
  state_.begin_captured();
  record_body(device, call, watch, before);
  check(before);
  state_.check_recordable();
  for (const auto& gradient : before.gradients)
    gradients_before_.push_back(gradient.defined() && recording_.mattered(gradient) ? gradient : at::Tensor());
  gradients_after_ = state_.gradients();
  syncs_after_ = state_.syncs();
  places_ = state_.places();
}

void StepGraph::record_body(GraphDevice& device, const StepCall& call, const OperatorWatch& watch, const Before& before) {
  const OtherInputs recorded(call.inputs, inputs_);
  // Weights that autocast has cast belong to the scope around the step, or to the recording: not to both.
  at::autocast::clear_cache();
  graph_ = device.record([&] {
    // From here on: to begin a recording calls operators, too.
    recording_.begin_with(before.gradients, [&watch, start = watch.fingerprint()] { return watch.fingerprint() != start; });
    const StepRecording::Scope scope(recording_);
    const NoHostCollectives refused(
        [] { throw NotRecordable("it gathers objects or waits for other processes, which replays would not do"); });
    call.body();
  });
  at::autocast::clear_cache();
}

void StepGraph::check(const Before& before) const {
  if (versions_of(inputs_) != before.inputs)
    throw NotRecordable("it writes to an input, which the caller would not see: write to another tensor");
  const RunParts& parts = state_.parts();
  if (parts.scaler && parts.scaler->awaits_step())
    throw NotRecordable("gradients are unscaled in it, and their optimizer does not step in it");
  for (const auto& optimizer : parts.optimizers) {
    if (optimizer.awaits_clip())
      throw NotRecordable("gradients are clipped in it (in_step), and their optimizer does not step in it");
  }
  check_others(before);
}

/// What optimizers and schedulers that are not prepared do on the host would be the same at every replay.
void StepGraph::check_others(const Before& before) const {
  if (state_.rates() != before.rates)
    throw NotRecordable("a learning rate is changed in it by something that was not prepared: use a prepared scheduler");
  const auto& parameters = state_.parameters();
  const auto versions = versions_of(parameters);
  std::unordered_set<const void*> changed;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (versions[i] != before.parameters[i]) changed.insert(parameters[i].unsafeGetTensorImpl());
  }
  for (const auto& optimizer : state_.parts().optimizers) {
    const auto own = optimizer.parameters();
    const bool is_changed = std::any_of(own.begin(), own.end(),
                                        [&](const auto& parameter) { return changed.contains(parameter.unsafeGetTensorImpl()); });
    if (is_changed && !recording_.has_stepped(optimizer.optimizer()))
      throw NotRecordable("parameters of a prepared optimizer are changed in it, and not by the prepared optimizer");
  }
}

void StepGraph::replay(const StepCall& call) {
  state_.begin_captured();
  {
    const at::AutoDispatchBelowADInplaceOrView bytes_alone;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i].defined()) inputs_[i].copy_(*call.inputs.tensors[i], /*non_blocking=*/true);
    }
    const auto& parameters = state_.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& recorded = gradients_before_[i];
      if (recorded.defined() && !recorded.is_same(parameters[i].grad())) recorded.copy_(parameters[i].grad());
    }
  }
  launch();
}

void StepGraph::launch() {
  recording_.run_before();
  graph_->replay();
  recording_.run_after();
  state_.set_gradients(gradients_after_);
  state_.set_syncs(syncs_after_);
  state_.end_captured();
}

}  // namespace accelerate::detail
