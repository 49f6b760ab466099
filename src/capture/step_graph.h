#pragma once

#include <accelerate/capture/captured_step.h>

#include <functional>
#include <memory>
#include <vector>

#include "capture/graph_device.h"
#include "capture/operator_watch.h"
#include "capture/step_state.h"
#include "training/step_recording.h"

namespace accelerate::detail {

/// One call of a step, recorded: the graph of the device, tensors that stand for its inputs, and what the host does at each
/// replay.
class StepGraph {
 public:
  explicit StepGraph(const StepState& state) : state_(state) {}

  /// To be called once, under `watch`. NotRecordable, or whatever comes out of the call or the device, when it fails: nothing has
  /// happened on the device then, and state and graph are to be given up.
  void record(GraphDevice& device, const StepCall& call, const OperatorWatch& watch);
  /// Does on the device what was recorded, with the inputs of another call. What it leaves is set on the host.
  void replay(const StepCall& call);
  /// The same, with the inputs that it was recorded with.
  void launch();
  /// Whether memory and options are still those that were recorded. What else may have changed makes another kind of call.
  bool fits() const { return places_ == state_.places() && recording_.fits(); }

 private:
  struct Before;

  void record_body(GraphDevice& device, const StepCall& call, const OperatorWatch& watch, const Before& before);
  void check(const Before& before) const;
  void check_others(const Before& before) const;

  const StepState& state_;
  std::unique_ptr<DeviceGraph> graph_;
  StepRecording recording_;
  std::vector<at::Tensor> inputs_;
  // For each parameter: the gradient that the recording begins with, where it matters, and the one it leaves.
  std::vector<at::Tensor> gradients_before_, gradients_after_;
  std::vector<DataParallel::Syncs> syncs_after_;
  // Where parameters and buffers lay.
  std::vector<const void*> places_;
};

}  // namespace accelerate::detail
