#include <accelerate/checkpoint/module_state.h>
#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/collectives.h>
#include <accelerate/parallel/model.h>
#include <torch/nn/module.h>

#include <c10/core/GradMode.h>

#include <algorithm>
#include <unordered_set>

#include "activations/checkpoint_layers.h"
#include "core/source_line.h"
#include "data/open_loop.h"
#include "distributed/communicator.h"
#include "distributed/pass_tracker.h"
#include "distributed/tensor_text.h"
#include "parallel/data_parallel.h"
#include "parallel/known_parameters.h"
#include "parallel/packed_broadcast.h"
#include "sharding/sharded_model.h"
#include "training/step_recording.h"
#include "training/weight_probe.h"
#include "training/zero_gradient.h"

namespace accelerate::detail {
namespace {

/// Ranks whose models differ would silently send the wrong tensors, so they compare them first.
void check_same_model(const ProcessState& state, const torch::nn::Module& module, std::source_location where) {
  std::vector<std::string> mine;
  for (const auto& [name, tensor] : state_dict(module)) mine.push_back(name + " " + describe(tensor));
  // What is trained is all-reduced: that, too, must be the same everywhere.
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined() && !item.value().requires_grad()) mine.push_back(item.key() + " frozen");
  }
  const auto main = [&] {
    auto list = mine;
    broadcast_object_list(state, list, 0, where);
    return list;
  }();
  std::string difference;
  for (size_t i = 0; i < std::max(mine.size(), main.size()) && difference.empty(); ++i) {
    const std::string here = i < mine.size() ? mine[i] : "nothing", there = i < main.size() ? main[i] : "nothing";
    if (here != there)
      difference = "rank " + std::to_string(state.process_index()) + " has " + here + " where the main process has " + there;
  }
  // Every process learns of it, so that none continues alone.
  for (const auto& report : gather_object(state, std::vector<std::string>{difference}, where)) {
    if (!report.empty()) throw DistributedError("The model given to prepare differs between processes: " + report + ".");
  }
}

bool is_trained(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& p) { return p.defined() && p.requires_grad(); });
}

std::vector<at::Tensor> start_tensors(const torch::nn::Module& module, bool with_buffers) {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : module.parameters()) tensors.push_back(parameter);
  if (with_buffers) {
    for (const auto& buffer : module.buffers()) tensors.push_back(buffer);
  }
  std::erase_if(tensors, [](const at::Tensor& tensor) { return !tensor.defined(); });
  return tensors;
}

}  // namespace

ModelCore::ModelCore(std::shared_ptr<torch::nn::Module> module, const ProcessState& state, const ModelOptions& options,
                     std::source_location where)
    : module_(std::move(module)), state_(state), options_(options), where_(where) {
  if (!module_) throw UsageError("prepare was given an empty module.");
  check_ddp_options(options.ddp);
  if (!options.evaluation_mode)
    check_tied_by_memory(named_parameters_of(*module_));  // before a move to a device tears them apart
  if (options.fsdp && options.fsdp->activation_checkpointing && !options.evaluation_mode) checkpoint_activations(*options.fsdp);
  const bool is_sharded = options.fsdp && options.fsdp->sharding_strategy != ShardingStrategy::no_shard &&
                          !options.evaluation_mode &&
                          (state.use_distributed() || options.fsdp->cpu_offload || !options.fsdp->offload_folder.empty());
  if (is_sharded) {
    shard(*options.fsdp);
    return;
  }
  if (options.fsdp) {
    fill_empty_weights(*module_);
    if (!options.evaluation_mode) compute_as_if_sharded(*options.fsdp);
  }
  // "cpu:0", taken literally, would copy a module that is on the CPU already.
  if (options.place) module_->to(state.device().is_cpu() ? at::Device(at::kCPU) : state.device());
  if (!state.use_distributed() || options.evaluation_mode) return;
  check_same_model(state, *module_, where);
  broadcast_packed(*state.communicator(), start_tensors(*module_, options.ddp.broadcast_buffers), 0, "prepare", where);
  if (is_trained(*module_)) data_parallel_ = std::make_shared<DataParallel>(module_, *state.communicator(), options.ddp, where);
  known_ = std::make_unique<KnownParameters>(*module_);
}

ModelCore::~ModelCore() = default;

void ModelCore::checkpoint_activations(const FsdpOptions& options) {
  if (options.transformer_layer_classes.empty())
    throw UsageError(
        "FSDP: activation_checkpointing needs to know which layers are computed again. Name their classes in "
        "transformer_layer_classes, or call accelerate::checkpoint(layer, inputs) in the model.");
  checkpoint_layers(*module_, options.transformer_layer_classes,
                    {.offload = options.activation_checkpointing_offload, .where = where_});
}

/// On one process, or with no_shard: in the dtype that several would compute in.
void ModelCore::compute_as_if_sharded(const FsdpOptions& options) {
  const auto dtype = options.mixed_precision ? options.mixed_precision->param_dtype : std::nullopt;
  if (!options_.autocast && (dtype == c10::ScalarType::BFloat16 || dtype == c10::ScalarType::Half)) options_.autocast = dtype;
}

/// Unlike a replica it is not moved to the device as a whole: it may be larger.
void ModelCore::shard(const FsdpOptions& options) {
  const auto device = state_.device().is_cpu() ? at::Device(at::kCPU) : state_.device();
  for (auto& buffer : module_->buffers()) {
    if (buffer.defined() && buffer.device() != device) buffer.set_data(buffer.to(device));
  }
  if (state_.use_distributed()) {
    check_same_model(state_, *module_, where_);
    auto buffers = module_->buffers();
    std::erase_if(buffers, [](const at::Tensor& buffer) { return !buffer.defined(); });
    if (options.sync_module_states) broadcast_packed(*state_.communicator(), buffers, 0, "prepare", where_);
  }
  sharded_ = std::make_unique<ShardedModel>(module_, state_, options, options_.ddp.find_unused_parameters, where_);
  if (options.mixed_precision) input_dtype_ = options.mixed_precision->param_dtype;
  known_ = std::make_unique<KnownParameters>(*module_);
}

void ModelCore::train(bool on) { module_->train(on); }

void ModelCore::zero_grad(bool set_to_none) {
  if (sharded_) return sharded_->zero_grad(set_to_none);
  for (const auto& parameter : module_->parameters()) zero_gradient(parameter, set_to_none);
}

std::vector<at::Tensor> ModelCore::parameters() const { return module_->parameters(); }

TensorDict ModelCore::named_parameters() const {
  TensorDict named;
  for (const auto& item : module_->named_parameters()) named[item.key()] = item.value();
  return named;
}

std::vector<at::Tensor> ModelCore::stepped_parameters() const { return sharded_ ? sharded_->pieces() : parameters(); }

TensorDict ModelCore::named_stepped_parameters() const { return sharded_ ? sharded_->named_pieces() : named_parameters(); }

TensorDict ModelCore::state_dict(bool keeps) const {
  return sharded_ ? sharded_->full_state_dict(keeps) : accelerate::state_dict(*module_);
}

void ModelCore::load_state_dict(const TensorDict& state) {
  if (sharded_) return sharded_->load_full_state_dict(state);
  accelerate::load_state_dict(*module_, state);
}

int64_t ModelCore::total_parameter_bytes() const {
  if (sharded_) return sharded_->total_bytes();
  int64_t bytes = 0;
  std::unordered_set<const void*> seen;  // one that is tied has several names
  for (const auto& parameter : module_->parameters()) {
    if (parameter.defined() && seen.insert(parameter.unsafeGetTensorImpl()).second)
      bytes += static_cast<int64_t>(parameter.nbytes());
  }
  return bytes;
}

int64_t ModelCore::local_parameter_bytes() const { return sharded_ ? sharded_->local_bytes() : total_parameter_bytes(); }

void ModelCore::before_forward() {
  if (sharded_) sharded_->before_forward();
  if (c10::GradMode::is_enabled()) {
    forward_since_step_.store(true, std::memory_order_relaxed);
    if (known_ && !sharded_ && known_->are_outdated(options_.ddp.find_unused_parameters)) follow_parameters();
    if (state_.num_processes() > 1 && !loader_warned_) warn_of_unprepared_loader();
  }
  if (data_parallel_) data_parallel_->before_forward();
}

void ModelCore::follow_parameters() {
  if (StepRecording::current())
    throw NotRecordable("parameters were frozen or unfrozen, or have another dtype, since the last step");
  if (data_parallel_) data_parallel_->check_rebuild();
  // The main process's weights, as at prepare: a part that was frozen may have been filled by one rank alone.
  check_same_model(state_, *module_, where_);
  broadcast_packed(*state_.communicator(), known_->unfrozen(), 0, "forward", where_);
  if (data_parallel_) {
    data_parallel_->rebuild();
  } else {
    data_parallel_ = std::make_shared<DataParallel>(module_, *state_.communicator(), options_.ddp, where_);
  }
  known_ = std::make_unique<KnownParameters>(*module_);
}

void ModelCore::warn_of_unprepared_loader() {
  const auto loop = OpenLoop::innermost_unprepared();
  if (!loop || !module_->is_training()) return;
  loader_warned_ = true;
  if (!state_.is_main_process()) return;
  get_logger("accelerate")
      .warning({.main_process_only = false},
               "The loop{} trains {} on {} ranks with a DataLoader that was not prepared: each rank sees every sample. Give it "
               "to accelerator.prepare, unless each rank has its own dataset.",
               at_line(*loop), module_->name(), state_.num_processes());
}

bool ModelCore::lacks_forward() const {
  if (!options_.autocast || data_parallel_ || sharded_ || options_.evaluation_mode || shares_parameters_ || forward_since_step_)
    return false;
  const auto parameters = module_->parameters();
  // Where gradients are kept over a step, the rest of an earlier pass may be under way: two losses, and a step after the first.
  return std::none_of(parameters.begin(), parameters.end(),
                      [](const at::Tensor& p) { return p.defined() && p.grad().defined(); });
}

void ModelCore::share_parameters() {
  shares_parameters_ = true;
  if (data_parallel_) data_parallel_->share_parameters();
}

std::vector<std::string> ModelCore::unknown_parameters() const {
  return known_ ? known_->unknown(*module_) : std::vector<std::string>();
}

void ModelCore::before_step(bool is_whole) {
  if (data_parallel_) data_parallel_->check_step();
  if (sharded_) sharded_->before_step();
  // Other optimizers may step the rest with gradients of the same forward pass.
  if (is_whole) forward_since_step_ = false;
  if (probe_) probe_->forget();  // weights may change now
}

WeightProbe& ModelCore::probe() {
  if (!probe_) probe_ = std::make_unique<WeightProbe>(*module_);
  return *probe_;
}

void ModelCore::accumulate(bool is_first, std::optional<std::source_location> where) {
  if (auto* recording = StepRecording::current()) {
    // Replays do not look at weights, and what was seen before them is no longer true.
    recording->add({.run = [this] {
      if (probe_) probe_->forget();
    }});
    return;
  }
  if (is_first) return probe().remember();
  if (!probe().has_changed()) return;
  probe_->forget();
  throw UsageError(
      "The weights of " + module_->name() + " changed during gradient accumulation" +
      (where ? ", before the batch" + at_line(*where) : "") +
      ": an optimizer stepped with partly accumulated gradients, or the gradients belong to other weights. Step with the "
      "prepared optimizer, which waits for the last batch, or step only if accelerator.sync_gradients() is true.");
}

void ModelCore::before_scaled_backward(std::source_location where) {
  if (StepRecording::current() || options_.evaluation_mode) return;
  if (!probe().has_changed()) return probe_->remember();
  probe_->forget();
  throw UsageError("The weights of " + module_->name() + " were stepped before the backward pass" + at_line(where) +
                   " with fp16 gradients that are still scaled by the GradScaler. Give the optimizer to "
                   "accelerator.prepare, or step it with accelerator.grad_scaler()->step(optimizer).");
}

void ModelCore::weights_loaded() {
  if (data_parallel_) data_parallel_->weights_averaged();
  if (probe_) probe_->forget();
}

AutocastScope ModelCore::autocast() const {
  const auto device = state_.device().type();
  return options_.autocast ? AutocastScope(device, *options_.autocast) : AutocastScope(Precision::no, device);
}

bool ModelCore::wants_outputs() const { return options_.autocast || (data_parallel_ && data_parallel_->wants_outputs()); }

void ModelCore::after_forward(const Leaves* outputs) const {
  if (options_.autocast && outputs) convert_to_fp32(*outputs);
  if (!data_parallel_) return;
  if (outputs == nullptr && data_parallel_->wants_outputs()) {
    throw UsageError("The forward pass of " + module_->name() +
                     " returns a type whose tensors cannot be found, but find_unused_parameters and static_graph need them: "
                     "return a tensor, or tensors in a struct, tuple, vector, map or optional.");
  }
  data_parallel_->after_forward(outputs == nullptr ? std::vector<at::Tensor*>() : outputs->tensors);
}

namespace {

/// Whether parameters have received gradients since it was made.
class GradientWatch {
 public:
  explicit GradientWatch(const ModelCore& model) : model_(model), before_(marks()) {}
  const ModelCore& model() const { return model_; }
  bool has_seen_gradients() const { return marks() != before_; }

 private:
  /// Each gradient, and how often it was written to.
  std::vector<std::pair<const void*, int64_t>> marks() const {
    std::vector<std::pair<const void*, int64_t>> marks;
    for (const auto& parameter : model_.parameters()) {
      if (!parameter.defined()) continue;
      const auto& gradient = parameter.grad();
      marks.emplace_back(gradient.defined() ? gradient.unsafeGetTensorImpl() : nullptr,
                         gradient.defined() && !gradient.is_inference() ? gradient._version() : 0);
    }
    return marks;
  }

  const ModelCore& model_;
  const std::vector<std::pair<const void*, int64_t>> before_;
};

/// Sharded models learn where the pass ends, and what is left of one that fails is dropped.
void run_sharded_backward(const std::vector<std::shared_ptr<ModelCore>>& models, const std::function<void()>& backward) {
  std::vector<GradientReducer*> reducers;
  for (const auto& model : models) {
    if (model->sharded()) reducers.push_back(&model->sharded()->reducer());
  }
  for (auto* reducer : reducers) reducer->begin_backward();
  try {
    backward();
    for (auto* reducer : reducers) reducer->finish_backward();
  } catch (...) {
    for (auto* reducer : reducers) reducer->abort_backward();
    throw;
  }
}

}  // namespace

void run_backward(const ProcessState& state, std::source_location where, const std::function<void()>& backward,
                  const std::vector<std::shared_ptr<ModelCore>>& models) {
  std::vector<GradientWatch> suspects;
  for (const auto& model : models) {
    if (model->lacks_forward()) suspects.emplace_back(*model);
  }
  const auto run = [&] { run_sharded_backward(models, backward); };
  if (state.use_distributed()) {
    state.communicator()->passes().during("backward", where, run);
  } else {
    run();
  }
  for (const auto& model : models) {
    if (model->data_parallel()) model->data_parallel()->check_backward(where);
  }
  for (const auto& suspect : suspects) {
    // A forward pass inside of the backward pass: activation checkpointing.
    if (suspect.model().had_forward() || !suspect.has_seen_gradients()) continue;
    throw UsageError(bypassed_model(suspect.model().module(), suspect.model().where(), where) +
                     " It ran without mixed precision. Call the prepared model, as in model(inputs): model->forward(inputs) and "
                     "the module itself bypass it, unless they are called inside accelerator.autocast(). Add a loss that needs "
                     "no model, such as a weight penalty, to the model's loss.");
  }
}

}  // namespace accelerate::detail
