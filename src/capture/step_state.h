#pragma once

#include <ATen/core/TensorBody.h>
#include <accelerate/capture/captured_step.h>

#include <memory>
#include <string>
#include <vector>

#include "parallel/data_parallel.h"
#include "run_state/run_parts.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// What a step finds and changes on the host: weights, gradients, rates, and what models are about to all-reduce.
class StepState {
 public:
  /// Of all that is prepared by then.
  explicit StepState(RunParts parts);

  const RunParts& parts() const { return parts_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// Before each call: finds models that all-reduce gradients since, and what was done to gradients of sharded ones. UsageError
  /// when an optimizer was destroyed.
  void update();

  /// Everything on the host that decides which kernels a call launches, as far as it can be known. `counts`: batches that it
  /// counts at most.
  std::string kind_of(const StepCall& call, c10::DeviceType device, int counts) const;
  /// Whether collectives are as they will be: after the first ones buckets of gradients are put in another order.
  bool is_settled() const;
  /// In join_uneven_inputs, where a process may have ended its data.
  bool is_joined() const;

  std::vector<at::Tensor> gradients() const;
  void set_gradients(const std::vector<at::Tensor>& gradients) const;
  /// Where parameters and buffers lie.
  std::vector<const void*> places() const;
  std::vector<double> rates() const;
  /// What models that all-reduce gradients are about to do.
  std::vector<DataParallel::Syncs> syncs() const;
  void set_syncs(const std::vector<DataParallel::Syncs>& syncs) const;
  /// Of sharded models, around a recording or a replay.
  void begin_captured() const;
  void end_captured() const;
  /// It could not be recorded.
  void abandon_captured() const;
  /// Before a recording, and in it. NotRecordable where a sharded model does on the host what replays would not.
  void check_recordable() const;
  /// What was recorded of passes and of clipping has not happened.
  void forget_recorded() const;

 private:
  RunParts parts_;
  std::vector<at::Tensor> parameters_, buffers_;  // of sharded models this rank's pieces
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<std::shared_ptr<DataParallel>> parallel_;
  std::vector<std::shared_ptr<ModelCore>> sharded_;
};

/// The state from before a recording, in which nothing happens on the device.
class StateBeforeRecording {
 public:
  explicit StateBeforeRecording(const StepState& state);
  /// What was counted in a recording is counted when it is launched.
  void restore_counts() const;
  /// The rest, where it could not be recorded.
  void restore_gradients() const;

 private:
  const StepState& state_;
  std::vector<at::Tensor> gradients_;
  int64_t step_;
  bool sync_gradients_;
  std::vector<DataParallel::Syncs> syncs_;
  std::optional<GradScaler> scaler_;
};

}  // namespace accelerate::detail
