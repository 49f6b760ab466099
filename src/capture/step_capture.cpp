#include "capture/step_capture.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <accelerate/core/error.h>
#include <accelerate/training/find_executable_batch_size.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <unordered_set>

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

template <class T>
void append_bytes(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// Raised by everything that writes to a tensor.
std::vector<int64_t> versions_of(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> versions;
  for (const auto& tensor : tensors) versions.push_back(tensor.defined() && !tensor.is_inference() ? tensor._version() : 0);
  return versions;
}

/// Puts other tensors in the place of the inputs of a call while it lives.
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

GraphDeviceMaker& graph_device_maker() {
  static GraphDeviceMaker maker = make_graph_device;
  return maker;
}

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
                     ": expected at least 1, in which optimizers make their state.");
  }
}

/// At the first call, when everything is prepared.
void StepCapture::begin() {
  parts_ = find_parts_();
  std::erase_if(parts_->optimizers, [](const auto& optimizer) { return optimizer.is_gone(); });  // of an earlier phase
  recorder_ = graph_device_maker()(device_);
  if (!recorder_) {
    tell(device_.is_cpu() ? "a CPU does what it is told at once, there is nothing to record"
                          : "this LibTorch records nothing for the device " + device_.str());
  }
  std::unordered_set<const void*> seen;
  const auto keep_parameters = [&](const std::vector<at::Tensor>& parameters) {
    for (const auto& parameter : parameters) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters_.push_back(parameter);
    }
  };
  for (const auto& model : parts_->models) {
    keep_parameters(model->parameters());
    for (const auto& buffer : model->module().buffers()) buffers_.push_back(buffer);
    for (auto& module : model->module().modules()) modules_.push_back(std::move(module));
  }
  for (const auto& optimizer : parts_->optimizers) keep_parameters(optimizer.parameters());
}

std::optional<size_t> StepCapture::run(const StepCall& call) {
  if (StepRecording::current()) {  // of a step that this one is a part of
    call.body();
    return {};
  }
  if (!parts_) begin();
  for (const auto& optimizer : parts_->optimizers) optimizer.param_groups();  // UsageError when it was destroyed
  // One that was frozen as a whole synchronises from when it is trained.
  for (const auto& model : parts_->models) {
    const auto& parallel = model->data_parallel();
    if (parallel && std::find(parallel_.begin(), parallel_.end(), parallel) == parallel_.end()) parallel_.push_back(parallel);
  }
  if (!recorder_) {
    run_eagerly(nullptr, call);
    return {};
  }
  const auto [found, is_new] = kinds_.try_emplace(kind_of(call));
  Kind& kind = found->second;
  if (is_new) {
    kind.number = kinds_.size() - 1;
    const auto inputs = text_of(call.inputs);
    if (known_inputs_.empty()) known_inputs_ = inputs;
    if (inputs != known_inputs_ && !std::exchange(other_inputs_told_, true))
      tell("its inputs are " + inputs + " and were " + known_inputs_ + ": steps of each kind are recorded apart, after " +
           std::to_string(options_.warmup_steps) + " that run eagerly");
  }
  if (kind.graph && !fits(kind)) forget(kind);
  const bool records = !kind.graph && !kind.refused && is_warm(kind) && may_record(kind, call);
  // NCCL takes it for granted that processes record and replay a collective together, and the same recording.
  enum : int64_t { eagerly, recording, replaying };
  if (!all_agree({kind.graph ? replaying : records ? recording : eagerly, kind.graph ? kind.recording_number : 0})) {
    if (kind.graph || records) tell("processes are at steps of different kinds, which are run eagerly");
    run_eagerly(&kind, call);
    return {};
  }
  if (kind.graph) {
    replay(kind, call);
    return kind.number;
  }
  if (records && record(kind, call)) return kind.number;
  run_eagerly(&kind, call);
  return {};
}

bool StepCapture::all_agree(const std::array<int64_t, 2>& about, bool recorded) const {
  // With join_uneven_inputs a process may have ended its data, and nothing is recorded.
  const bool joined = std::any_of(parallel_.begin(), parallel_.end(), [](const auto& model) { return model->joined(); });
  if (!parts_->state.use_distributed() || joined) return true;
  std::array<int64_t, 4> both = {about[0], -about[0], about[1], -about[1]};
  at::Tensor most = at::from_blob(both.data(), {4}, at::TensorOptions().dtype(at::kLong));
  Communicator& peers = *parts_->state.communicator();
  // Where a recording broke off, fewer calls were made.
  if (recorded) peers.align_calls("a captured step", where_);
  peers.all_reduce(most, c10d::ReduceOp::MAX, "a captured step", where_);
  return both[0] == -both[1] && both[2] == -both[3];
}

/// What was recorded is no longer true: something was loaded, replaced or set.
void StepCapture::forget(Kind& kind) {
  const int in_vain = kind.replayed ? 0 : kind.in_vain + 1;
  start_again(kind);
  kind.in_vain = in_vain;
  if (in_vain < 3) return;
  kind.refused = true;
  tell("options of its optimizer, or the places of its weights, change from call to call: does a scheduler cycle momentum?");
}

/// Everything on the host that decides which kernels a call launches, as far as it can be known.
std::string StepCapture::kind_of(const StepCall& call) const {
  std::string kind = call.inputs.outline;
  for (const auto* tensor : call.inputs.tensors) {
    append_bytes(kind, tensor->defined());
    if (!tensor->defined()) continue;
    append_bytes(kind, tensor->scalar_type());
    append_bytes(kind, tensor->device());
    append_bytes(kind, tensor->layout());
    if (tensor->layout() != at::kStrided) continue;
    for (const auto& numbers : {tensor->sizes(), tensor->strides()}) {
      append_bytes(kind, numbers.size());
      for (const auto number : numbers) append_bytes(kind, number);
    }
  }
  const GradientState& gradients = *parts_->gradients;
  append_bytes(kind, gradients.num_steps());
  append_bytes(kind, gradients.sync_gradients());
  for (int i = 0; i < counts_; ++i) append_bytes(kind, gradients.would_sync(i));
  for (const auto& parameter : parameters_)
    kind += static_cast<char>('a' + 2 * parameter.requires_grad() + parameter.grad().defined());
  for (const auto& module : modules_) kind += module->is_training() ? 't' : 'e';
  for (const auto& model : parallel_) {
    kind += static_cast<char>('a' + 4 * model->joined() + 2 * model->syncs().gradients + model->syncs().buffers);
    append_bytes(kind, model->rebuilds());  // the memory of buckets is another one
  }
  append_bytes(kind, c10::GradMode::is_enabled());
  append_bytes(kind, c10::InferenceMode::is_enabled());
  append_bytes(kind, at::autocast::is_autocast_enabled(device_.type()));
  append_bytes(kind, at::autocast::get_autocast_dtype(device_.type()));
  return kind;
}

void StepCapture::run_eagerly(Kind* kind, const StepCall& call) {
  ++report_.eager;
  if (!kind || kind->refused) return call.body();
  const auto counted = parts_->gradients->counted();
  const OperatorWatch watch;
  call.body();
  counts_ = std::max(counts_, static_cast<int>(parts_->gradients->counted() - counted));
  const auto operators = watch.fingerprint();
  kind->alike = operators == kind->operators ? kind->alike + 1 : 1;
  kind->operators = operators;
  if (!is_settled() || ++kind->calls < 5 * options_.warmup_steps || is_warm(*kind)) return;
  kind->refused = true;
  tell("it does not call the same operators every time");
}

/// The first call of a kind may differ: state is made in it. From then on two in a row are to be the same.
bool StepCapture::is_warm(const Kind& kind) const {
  return is_settled() && kind.calls >= options_.warmup_steps && kind.alike >= std::min(2, options_.warmup_steps);
}

/// After the first collectives buckets of gradients are put in another order.
bool StepCapture::is_settled() const {
  return std::all_of(parallel_.begin(), parallel_.end(), [](const auto& model) { return model->is_settled(); });
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
    if (!fault.empty()) reason = "an input of it " + fault;
  }
  if (!call.inputs.other.empty()) reason = "it is given " + call.inputs.other + ", which would be the same at every replay";
  if (call.opaque_result) reason = "it returns a " + c10::demangle(call.opaque_result) + ", which is no result of the device";
  const auto graphs =
      std::count_if(kinds_.begin(), kinds_.end(), [](const auto& other) { return other.second.graph != nullptr; });
  if (graphs >= options_.max_graphs)
    reason = "there are more than " + std::to_string(options_.max_graphs) + " kinds of steps (max_graphs)";
  if (reason.empty()) return true;
  kind.refused = true;
  tell(reason);
  return false;
}

bool StepCapture::record(Kind& kind, const StepCall& call) {
  // As it was, should the recording fail: nothing has happened on the device then.
  const auto before = gradients();
  const auto step = parts_->gradients->step();
  const bool sync = parts_->gradients->sync_gradients();
  const auto syncs_before = syncs();
  std::optional<GradScaler> scaler;
  if (parts_->scaler) scaler = *parts_->scaler;
  const OperatorWatch watch;
  std::string reason;
  try {
    clear_device_cache();  // what eager steps have left is in the way of memory of its own
    record_body(kind, call, watch);
  } catch (const NotRecordable& error) {
    reason = error.what();
  } catch (const c10::Error& error) {
    reason = watch.last() + " cannot be recorded: " + first_line(error.what_without_backtrace());
  } catch (const std::exception& error) {
    reason = "after " + watch.last() + ": " + first_line(error.what());
  } catch (...) {
    reason = "after " + watch.last() + " it throws what is no exception of the standard";
  }
  // Together or not at all.
  if (!all_agree({reason.empty(), 0}, /*recorded=*/true) && reason.empty()) reason = "another process could not record it";
  // What it counted is counted when it is launched.
  parts_->gradients->set_step(step);
  parts_->gradients->set_sync_gradients(sync);
  set_syncs(syncs_before);
  if (reason.empty()) {
    try {
      follow_last_replay();
      launch(kind);
    } catch (...) {
      start_again(kind);  // its result never came
      throw;
    }
    ++report_.recorded;
    kind.recording_number = ++recordings_;
    return true;
  }
  start_again(kind);
  kind.refused = true;
  set_gradients(before);
  for (const auto& model : parallel_) model->forget_recorded_pass();
  for (const auto& optimizer : parts_->optimizers) optimizer.forget_recorded_clip();
  if (scaler) *parts_->scaler = *scaler;
  tell(reason);
  return false;
}

void StepCapture::start_again(Kind& kind) {
  const auto number = kind.number;
  kind = {};
  kind.number = number;
}

void StepCapture::record_body(Kind& kind, const StepCall& call, const OperatorWatch& watch) {
  for (const auto* tensor : call.inputs.tensors) kind.inputs.push_back(tensor->defined() ? tensor->clone() : at::Tensor());
  const auto before = gradients();
  const auto versions_before = versions_of(parameters_);
  const auto rates_before = rates();
  const auto inputs_before = versions_of(kind.inputs);
  {
    const OtherInputs recorded(call.inputs, kind.inputs);
    // Weights that autocast has cast belong to the scope around the step, or to the recording: not to both.
    at::autocast::clear_cache();
    kind.graph = recorder_->record([&] {
      // From here on: to begin a recording calls operators, too.
      kind.recording.begin_with(before, [&watch, start = watch.fingerprint()] { return watch.fingerprint() != start; });
      const StepRecording::Scope scope(kind.recording);
      const NoHostCollectives refused(
          [] { throw NotRecordable("processes gather objects or wait for each other in it, which replays would not do"); });
      call.body();
    });
    at::autocast::clear_cache();
  }
  if (versions_of(kind.inputs) != inputs_before)
    throw NotRecordable("it writes to an input, which the caller would not see: write to a tensor that is none");
  if (parts_->scaler && parts_->scaler->awaits_step())
    throw NotRecordable("gradients are unscaled in it, and their optimizer does not step in it");
  for (const auto& optimizer : parts_->optimizers) {
    if (optimizer.awaits_clip())
      throw NotRecordable("gradients are clipped in it (in_step), and their optimizer does not step in it");
  }
  check_by_others(versions_before, rates_before, kind);
  for (const auto& gradient : before)
    kind.gradients_before.push_back(gradient.defined() && kind.recording.mattered(gradient) ? gradient : at::Tensor());
  kind.gradients_after = gradients();
  kind.syncs_after = syncs();
  kind.places = places();
}

/// What optimizers and schedulers that are not prepared do on the host would be the same at every replay.
void StepCapture::check_by_others(const std::vector<int64_t>& versions_before, const std::vector<double>& rates_before,
                                  const Kind& kind) const {
  if (rates() != rates_before)
    throw NotRecordable("a learning rate is changed in it by something that was not prepared: use a prepared scheduler");
  const auto versions_after = versions_of(parameters_);
  std::unordered_set<const void*> changed;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (versions_after[i] != versions_before[i]) changed.insert(parameters_[i].unsafeGetTensorImpl());
  }
  for (const auto& optimizer : parts_->optimizers) {
    const auto own = optimizer.parameters();
    const bool is_changed = std::any_of(own.begin(), own.end(),
                                        [&](const auto& parameter) { return changed.contains(parameter.unsafeGetTensorImpl()); });
    if (is_changed && !kind.recording.has_stepped(optimizer.optimizer()))
      throw NotRecordable("parameters of a prepared optimizer are changed in it, and not by the prepared optimizer");
  }
}

/// Begins the work of a recording whose inputs are in place.
void StepCapture::launch(Kind& kind) {
  kind.recording.run_before();
  kind.graph->replay();
  kind.recording.run_after();
  set_gradients(kind.gradients_after);
  set_syncs(kind.syncs_after);
  if (!device_.is_cpu()) last_stream_ = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
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

void StepCapture::replay(Kind& kind, const StepCall& call) {
  ++report_.replayed;
  kind.replayed = true;
  follow_last_replay();
  {
    const at::AutoDispatchBelowADInplaceOrView bytes_alone;
    for (size_t i = 0; i < kind.inputs.size(); ++i) {
      if (kind.inputs[i].defined()) kind.inputs[i].copy_(*call.inputs.tensors[i], /*non_blocking=*/true);
    }
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const auto& recorded = kind.gradients_before[i];
      if (recorded.defined() && !recorded.is_same(parameters_[i].grad())) recorded.copy_(parameters_[i].grad());
    }
  }
  launch(kind);
}

/// Whether memory and options are still those that were recorded. What else may have changed is a matter of the kind.
bool StepCapture::fits(const Kind& kind) const { return kind.places == places() && kind.recording.fits(); }

std::vector<at::Tensor> StepCapture::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters_) gradients.push_back(parameter.grad());
  return gradients;
}

void StepCapture::set_gradients(const std::vector<at::Tensor>& gradients) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].grad().is_same(gradients[i])) parameters_[i].mutable_grad() = gradients[i];
  }
}

std::vector<const void*> StepCapture::places() const {
  std::vector<const void*> places;
  for (const auto* tensors : {&parameters_, &buffers_}) {
    for (const auto& tensor : *tensors) places.push_back(tensor.const_data_ptr());
  }
  return places;
}

std::vector<double> StepCapture::rates() const {
  std::vector<double> rates;
  for (const auto& optimizer : parts_->optimizers) {
    for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  }
  return rates;
}

std::vector<DataParallel::Syncs> StepCapture::syncs() const {
  std::vector<DataParallel::Syncs> syncs;
  for (const auto& model : parallel_) syncs.push_back(model->syncs());
  return syncs;
}

void StepCapture::set_syncs(const std::vector<DataParallel::Syncs>& syncs) const {
  for (size_t i = 0; i < syncs.size(); ++i) parallel_[i]->set_syncs(syncs[i]);
}

void StepCapture::tell(const std::string& reason) {
  auto& reasons = report_.reasons;
  if (std::find(reasons.begin(), reasons.end(), reason) != reasons.end()) return;
  reasons.push_back(reason);
  logger_.warning("The step given to capture at {}:{} runs eagerly: {}.", where_.file_name(), where_.line(), reason);
}

}  // namespace accelerate::detail
