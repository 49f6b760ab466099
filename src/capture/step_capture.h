#pragma once

#include <accelerate/capture/captured_step.h>
#include <accelerate/console/logging.h>
#include <c10/core/Stream.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <unordered_map>

#include "capture/graph_device.h"
#include "capture/step_graph.h"
#include "capture/step_state.h"
#include "run_state/run_parts.h"

namespace accelerate::detail {

/// The calls of a captured step. Those of each kind run eagerly to warm up, then one is recorded, and from then on it is
/// replayed.
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
    // While it warms up: calls, those in a row that called the same operators, and which they were.
    int calls = 0, alike = 0;
    uint64_t operators = 0;
    bool refused = false;
    std::unique_ptr<StepGraph> graph;
    // Which recording of this step it is: processes count theirs together.
    int64_t recording_number = 0;
    // Whether what was recorded was ever replayed, and how often in a row it was not.
    bool replayed = false;
    int in_vain = 0;
  };
  enum class Way : int64_t { eager, record, replay };

  void begin();
  Kind& find_kind(const StepCall& call);
  void start_again(Kind& kind);
  void forget(Kind& kind);
  Way agree_on_way(Kind& kind, const StepCall& call);

  void run_eagerly(Kind& kind, const StepCall& call);
  void note_warm_up(Kind& kind, uint64_t operators);
  bool is_warm(const Kind& kind) const;

  bool may_record(Kind& kind, const StepCall& call);
  std::string fault_of(const at::Tensor& input) const;
  /// False, with everything as it was, when it could not be recorded.
  bool record(Kind& kind, const StepCall& call);
  /// Why it could not be recorded; "" when it was.
  std::string try_to_record(StepGraph& graph, const StepCall& call);

  void replay(Kind& kind, const StepCall& call);
  void follow_last_replay() const;
  void note_replay();

  /// Whether all processes are about to do the same; without asking where there is one.
  bool all_agree(const std::array<int64_t, 2>& about, bool recorded = false) const;
  void tell(const std::string& reason);

  std::function<RunParts()> find_parts_;
  c10::Device device_;
  CaptureOptions options_;
  Logger logger_;
  std::source_location where_;

  // From the first call on; the recorder is null where nothing can be recorded.
  std::optional<StepState> state_;
  std::unique_ptr<GraphDevice> recorder_;
  int counts_ = 1;  // batches that a call counts at most
  std::unordered_map<std::string, Kind> kinds_;
  std::string known_inputs_;
  bool other_inputs_told_ = false;
  int64_t recordings_ = 0;
  std::optional<c10::Stream> last_stream_;
  CaptureReport report_;
};

}  // namespace accelerate::detail
