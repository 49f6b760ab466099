#pragma once

#include <accelerate/capture/captured_step.h>
#include <accelerate/console/logging.h>
#include <c10/core/Stream.h>

#include <array>
#include <source_location>
#include <unordered_map>

#include "capture/graph_device.h"
#include "capture/operator_watch.h"
#include "parallel/data_parallel.h"
#include "run_state/run_parts.h"
#include "training/step_recording.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// Who records for a captured step. Tests put another one in its place.
GraphDeviceMaker& graph_device_maker();

/// Records the calls of a step, a recording for each kind of call, and replays them.
class StepCapture {
 public:
  /// `parts` is asked at the first call.
  StepCapture(std::function<RunParts()> parts, c10::Device device, CaptureOptions options, Logger logger,
              std::source_location where);

  std::optional<size_t> run(const StepCall& call);
  const CaptureReport& report() const { return report_; }

 private:
  /// Calls whose work for the device is the same, but for the numbers in their tensors.
  struct Kind {
    size_t number = 0;
    // Which recording of this step it is: processes count theirs together.
    int64_t recording_number = 0;
    // While it warms up: calls, those in a row that called the same operators, and which they were.
    int calls = 0, alike = 0;
    uint64_t operators = 0;
    bool refused = false;
    // Whether what was recorded was ever replayed, and how often in a row it was not.
    bool replayed = false;
    int in_vain = 0;
    std::unique_ptr<DeviceGraph> graph;
    StepRecording recording;
    std::vector<at::Tensor> inputs;
    // For each parameter: the gradient that the recording begins with, where it matters, and the one it leaves.
    std::vector<at::Tensor> gradients_before, gradients_after;
    std::vector<DataParallel::Syncs> syncs_after;
    // Where parameters and buffers lay.
    std::vector<const void*> places;
  };

  void begin();
  void start_again(Kind& kind);
  void forget(Kind& kind);
  std::string fault_of(const at::Tensor& input) const;
  void follow_last_replay() const;
  std::string kind_of(const StepCall& call) const;
  void run_eagerly(Kind* kind, const StepCall& call);
  bool is_warm(const Kind& kind) const;
  bool is_settled() const;
  bool may_record(Kind& kind, const StepCall& call);
  /// False, with everything as it was, when it could not be recorded.
  bool record(Kind& kind, const StepCall& call);
  void record_body(Kind& kind, const StepCall& call, const OperatorWatch& watch);
  void launch(Kind& kind);
  void replay(Kind& kind, const StepCall& call);
  bool fits(const Kind& kind) const;
  std::vector<at::Tensor> gradients() const;
  void set_gradients(const std::vector<at::Tensor>& gradients);
  std::vector<const void*> places() const;
  void check_by_others(const std::vector<int64_t>& versions_before, const std::vector<double>& rates_before,
                       const Kind& kind) const;
  std::vector<double> rates() const;
  /// What models that all-reduce gradients are about to do.
  std::vector<DataParallel::Syncs> syncs() const;
  void set_syncs(const std::vector<DataParallel::Syncs>& syncs) const;
  /// Whether all processes are about to do the same; without asking where there is one.
  bool all_agree(const std::array<int64_t, 2>& about, bool recorded = false) const;
  void tell(const std::string& reason);

  std::function<RunParts()> find_parts_;
  c10::Device device_;
  CaptureOptions options_;
  Logger logger_;
  std::source_location where_;

  std::optional<RunParts> parts_;
  std::unique_ptr<GraphDevice> recorder_;
  std::vector<at::Tensor> parameters_, buffers_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<std::shared_ptr<DataParallel>> parallel_;
  int counts_ = 1;  // batches that a call counts at most
  std::unordered_map<std::string, Kind> kinds_;
  std::string known_inputs_;
  bool other_inputs_told_ = false;
  int64_t recordings_ = 0;
  std::optional<c10::Stream> last_stream_;
  CaptureReport report_;
};

}  // namespace accelerate::detail
