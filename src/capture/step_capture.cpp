#include "capture/step_capture.h"

#include <ATen/ops/from_blob.h>
#include <accelerate/core/error.h>
#include <accelerate/parallel/model.h>
#include <accelerate/training/find_executable_batch_size.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <utility>

#include "distributed/communicator.h"
#include "distributed/failure_policy.h"

namespace accelerate::detail {
namespace {

std::string text_of(const at::Tensor& tensor) {
  std::string text = std::string(c10::toString(tensor.scalar_type())) + "[";
  for (const auto size : tensor.sizes()) text += (text.back() == '[' ? "" : ", ") + std::to_string(size);
  return text + "]";
}

/// Of all tensors: "Float[8, 3], Long[8]".
std::string text_of(const Leaves& inputs) {
  std::string text;
  for (const auto* tensor : inputs.tensors) text += (text.empty() ? "" : ", ") + (tensor->defined() ? text_of(*tensor) : "none");
  return text;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::optional<size_t> run_step(StepCapture& capture, const StepCall& call) { return capture.run(call); }

CaptureReport report_of(const StepCapture& capture) { return capture.report(); }

void detach_results(const Leaves& results) {
  if (StepRecording::current() && !results.other.empty())
    throw NotRecordable("it returns " + results.other + ", which would be the same at every replay");
  for (auto* tensor : results.tensors) {
    if (tensor->defined()) *tensor = tensor->detach();
  }
}

StepCapture::StepCapture(std::function<RunParts()> parts, c10::Device device, CaptureOptions options, Logger logger,
                         std::source_location where)
    : find_parts_(std::move(parts)),
      device_(device.is_cpu() ? c10::Device(at::kCPU) : device),  // tensors have no index there
      options_(options),
      logger_(std::move(logger)),
      where_(where) {
  if (options.warmup_steps < 1) {
    throw UsageError("capture was given warmup_steps=" + std::to_string(options.warmup_steps) +
                     ": expected at least 1, so that optimizers can create their state.");
  }
}

/// At the first call, when everything is prepared.
void StepCapture::begin() {
  state_.emplace(find_parts_());
  recorder_ = (options_.graph_device != nullptr ? options_.graph_device : make_graph_device)(device_);
  if (recorder_) return;
  tell(device_.is_cpu() ? "only steps on a GPU can be recorded"
                        : "this build of LibTorch cannot record steps on " + device_.str());
}

std::optional<size_t> StepCapture::run(const StepCall& call) {
  if (StepRecording::current()) {  // of a step that this one is a part of
    call.body();
    return {};
  }
  if (!state_) begin();
  state_->update();
  if (!recorder_) {
    ++report_.eager;
    call.body();
    return {};
  }
  Kind& kind = find_kind(call);
  if (kind.graph && !kind.graph->fits()) forget(kind);
  const Way way = agree_on_way(kind, call);
  if (way == Way::replay) {
    replay(kind, call);
    return kind.number;
  }
  if (way == Way::record && record(kind, call)) return kind.number;
  run_eagerly(kind, call);
  return {};
}

StepCapture::Kind& StepCapture::find_kind(const StepCall& call) {
  const auto [found, is_new] = kinds_.try_emplace(state_->kind_of(call, device_.type(), counts_));
  if (!is_new) return found->second;
  found->second.number = kinds_.size() - 1;
  const auto inputs = text_of(call.inputs);
  if (known_inputs_.empty()) known_inputs_ = inputs;
  if (inputs != known_inputs_ && !std::exchange(other_inputs_told_, true))
    tell("its inputs are " + inputs + " and were " + known_inputs_ + ": each kind of step is recorded separately, after " +
         std::to_string(options_.warmup_steps) + " eager steps");
  return found->second;
}

void StepCapture::start_again(Kind& kind) {
  const auto number = kind.number;
  kind = {};
  kind.number = number;
}

/// What was recorded is no longer true: something was loaded, replaced or set.
void StepCapture::forget(Kind& kind) {
  const int in_vain = kind.replayed ? 0 : kind.in_vain + 1;
  start_again(kind);
  kind.in_vain = in_vain;
  if (in_vain < 3) return;
  kind.refused = true;
  tell("the options of its optimizer, or the addresses of its weights, change between calls: does a scheduler cycle momentum?");
}

/// NCCL takes it for granted that processes record and replay a collective together, and the same recording.
StepCapture::Way StepCapture::agree_on_way(Kind& kind, const StepCall& call) {
  Way way = Way::eager;
  if (kind.graph) {
    way = Way::replay;
  } else if (!kind.refused && is_warm(kind) && may_record(kind, call)) {
    way = Way::record;
  }
  if (all_agree({static_cast<int64_t>(way), kind.graph ? kind.recording_number : 0})) return way;
  if (way != Way::eager) tell("ranks are at different kinds of steps, which run eagerly");
  return Way::eager;
}

bool StepCapture::all_agree(const std::array<int64_t, 2>& about, bool recorded) const {
  const ProcessState& process = state_->parts().state;
  // With join_uneven_inputs a process may have ended its data, and nothing is recorded.
  if (!process.use_distributed() || state_->is_joined()) return true;
  std::array<int64_t, 4> both = {about[0], -about[0], about[1], -about[1]};
  at::Tensor most = at::from_blob(both.data(), {4}, at::TensorOptions().dtype(at::kLong));
  Communicator& peers = *process.communicator();
  // Where a recording broke off, fewer calls were made.
  if (recorded) peers.align_calls("a captured step", where_);
  peers.all_reduce(most, c10d::ReduceOp::MAX, "a captured step", where_);
  return both[0] == -both[1] && both[2] == -both[3];
}

void StepCapture::run_eagerly(Kind& kind, const StepCall& call) {
  ++report_.eager;
  if (kind.refused) return call.body();
  const GradientState& gradients = *state_->parts().gradients;
  const auto counted = gradients.counted();
  const OperatorWatch watch;
  call.body();
  counts_ = std::max(counts_, static_cast<int>(gradients.counted() - counted));
  note_warm_up(kind, watch.fingerprint());
}

void StepCapture::note_warm_up(Kind& kind, uint64_t operators) {
  kind.alike = operators == kind.operators ? kind.alike + 1 : 1;
  kind.operators = operators;
  if (!state_->is_settled() || ++kind.calls < 5 * options_.warmup_steps || is_warm(kind)) return;
  kind.refused = true;
  tell("it does not call the same operators every time");
}

/// The first call of a kind may differ: state is made in it. From then on two in a row are to be the same.
bool StepCapture::is_warm(const Kind& kind) const {
  return state_->is_settled() && kind.calls >= options_.warmup_steps && kind.alike >= std::min(2, options_.warmup_steps);
}

/// What is wrong with an input; "" when nothing is.
std::string StepCapture::fault_of(const at::Tensor& input) const {
  if (input.device() != device_) return "is on " + input.device().str() + " and not on " + device_.str();
  if (input.layout() != at::kStrided) return "is sparse";
  return input.requires_grad() ? "requires gradients" : "";
}

/// Finds what is wrong with a kind of step before it is recorded.
bool StepCapture::may_record(Kind& kind, const StepCall& call) {
  std::string reason;
  for (const auto* tensor : call.inputs.tensors) {
    const auto fault = tensor->defined() ? fault_of(*tensor) : "";
    if (!fault.empty()) reason = "one of its inputs " + fault;
  }
  if (!call.inputs.other.empty()) reason = "it is given " + call.inputs.other + ", which would be the same at every replay";
  if (call.opaque_result) reason = "it returns a " + c10::demangle(call.opaque_result) + ", in which no tensor can be found";
  const auto graphs =
      std::count_if(kinds_.begin(), kinds_.end(), [](const auto& other) { return other.second.graph != nullptr; });
  if (graphs >= options_.max_graphs)
    reason = "there are more than " + std::to_string(options_.max_graphs) + " kinds of steps (max_graphs)";
  // Not once it has begun: what is there of earlier steps would be dropped with what a recording leaves.
  try {
    state_->check_recordable();
  } catch (const NotRecordable& error) {
    reason = error.what();
  }
  if (reason.empty()) return true;
  kind.refused = true;
  tell(reason);
  return false;
}

bool StepCapture::record(Kind& kind, const StepCall& call) {
  const StateBeforeRecording before(*state_);
  auto graph = std::make_unique<StepGraph>(*state_);
  std::string reason = try_to_record(*graph, call);
  // Together or not at all.
  if (!all_agree({reason.empty(), 0}, /*recorded=*/true) && reason.empty()) reason = "another process could not record it";
  before.restore_counts();
  if (!reason.empty()) {
    graph.reset();
    start_again(kind);
    kind.refused = true;
    before.restore_gradients();
    tell(reason);
    return false;
  }
  try {
    follow_last_replay();
    graph->launch();
    note_replay();
  } catch (...) {
    start_again(kind);  // its result never came
    throw;
  }
  kind.graph = std::move(graph);
  ++report_.recorded;
  kind.recording_number = ++recordings_;
  return true;
}

std::string StepCapture::try_to_record(StepGraph& graph, const StepCall& call) {
  const OperatorWatch watch;
  try {
    clear_device_cache();  // what eager steps have left is in the way of memory of its own
    graph.record(*recorder_, call, watch);
    return "";
  } catch (const NotRecordable& error) {
    return error.what();
  } catch (const c10::Error& error) {
    return watch.last() + " cannot be recorded: " + first_line(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return "after " + watch.last() + ": " + first_line(error.what());
  } catch (...) {
    return "after " + watch.last() + " it throws something that is not a std::exception";
  }
}

void StepCapture::replay(Kind& kind, const StepCall& call) {
  ++report_.replayed;
  kind.replayed = true;
  follow_last_replay();
  kind.graph->replay(call);
  note_replay();
}

/// Recordings share their memory, and may be replayed on one stream after the other.
void StepCapture::follow_last_replay() const {
  if (!last_stream_) return;
  const auto stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  if (stream == *last_stream_) return;
  c10::Event replayed(device_.type());
  replayed.record(*last_stream_);
  replayed.block(stream);
}

void StepCapture::note_replay() {
  if (!device_.is_cpu()) last_stream_ = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

void StepCapture::tell(const std::string& reason) {
  auto& reasons = report_.reasons;
  if (std::find(reasons.begin(), reasons.end(), reason) != reasons.end()) return;
  reasons.push_back(reason);
  logger_.warning("The step given to capture at {}:{} runs eagerly: {}.", where_.file_name(), where_.line(), reason);
}

}  // namespace accelerate::detail
