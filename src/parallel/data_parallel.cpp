#include "parallel/data_parallel.h"

#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/objects.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "core/source_line.h"
#include "distributed/communicator.h"
#include "distributed/pass_tracker.h"
#include "parallel/bucket_size.h"
#include "parallel/comm_hook.h"
#include "parallel/packed_broadcast.h"
#include "training/step_recording.h"

namespace accelerate::detail {

/// The parameters that are trained, each once, in the order of the module.
struct DataParallel::Trained {
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  std::vector<bool> sparse;

  explicit Trained(const torch::nn::Module& module) {
    std::unordered_set<const void*> seen;
    add(module, "", seen);
  }

  void add(const torch::nn::Module& module, const std::string& prefix, std::unordered_set<const void*>& seen) {
    const auto* embedding = module.as<torch::nn::Embedding>();
    const auto* bag = module.as<torch::nn::EmbeddingBag>();
    const bool is_sparse = (embedding != nullptr && embedding->options.sparse()) || (bag != nullptr && bag->options.sparse());
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      const at::Tensor& parameter = item.value();
      if (!parameter.defined() || !parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      parameters.push_back(parameter);
      names.push_back(prefix + item.key());
      sparse.push_back(is_sparse);
    }
    for (const auto& child : module.named_children()) add(*child.value(), prefix + child.key() + ".", seen);
  }

  /// Which parameters travel together. Their order in the backward pass is not known before the first one, so that one sends them
  /// all at the end, unless unused ones may turn up later.
  std::vector<std::vector<size_t>> buckets(const DdpOptions& options) const {
    std::vector<size_t> limits = {std::numeric_limits<int64_t>::max()};
    if (options.find_unused_parameters && !options.static_graph) limits = {first_cap(options), bucket_cap(options)};
    auto assigned = std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, limits, sparse));
    // Gradients come from the last layer to the first.
    std::reverse(assigned.begin(), assigned.end());
    return assigned;
  }

  static size_t bucket_cap(const DdpOptions& options) { return static_cast<size_t>(options.bucket_cap_mb) * 1024 * 1024; }
  /// The first bucket is small only when nothing was asked for.
  static size_t first_cap(const DdpOptions& options) {
    return options.bucket_cap_mb == DdpOptions{}.bucket_cap_mb ? size_t{c10d::kDefaultFirstBucketBytes} : bucket_cap(options);
  }

  std::unordered_map<size_t, std::string> numbered_names() const {
    std::unordered_map<size_t, std::string> numbered;
    for (size_t i = 0; i < names.size(); ++i) numbered.emplace(i, names[i]);
    return numbered;
  }
};

namespace {

/// Knows its model by a pointer that the graph does not keep alive.
struct SinkOwner : torch::CustomClassHolder {
  std::weak_ptr<DataParallel> model;
};

/// Passes gradients on. All outputs go through one node, so that those that take no part in the loss pass on that there is no
/// gradient, and the model hears when a backward pass begins.
struct OutputSink : torch::autograd::Function<OutputSink> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, at::TensorList outputs,
                                                const c10::intrusive_ptr<SinkOwner>& owner) {
    context->set_materialize_grads(false);
    context->saved_data["owner"] = c10::IValue::make_capsule(owner);
    torch::autograd::variable_list copies;
    for (const auto& output : outputs) copies.push_back(output.clone());
    return copies;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto capsule = context->saved_data.at("owner").toCapsule();
    if (const auto model = static_cast<SinkOwner*>(capsule.get())->model.lock()) model->outputs_reached();
    gradients.emplace_back();
    return gradients;
  }
};

/// The numbers after "did not receive grad for rank N:".
std::vector<size_t> numbers_of_unused(const std::string& message) {
  const std::string mark = "Parameter indices which did not receive grad for rank";
  const auto found = message.find(mark);
  std::vector<size_t> numbers;
  if (found == std::string::npos) return numbers;
  const auto end = std::min(message.find('\n', found), message.size());
  for (auto at = message.find(':', found); at < end;) {
    at = message.find_first_of("0123456789", at);
    if (at >= end) break;
    size_t length = 0;
    numbers.push_back(std::stoul(message.substr(at, end - at), &length));
    at += length;
  }
  return numbers;
}

}  // namespace

DataParallel::DataParallel(std::shared_ptr<torch::nn::Module> module, Communicator& communicator, const DdpOptions& options,
                           std::source_location where)
    : DataParallel(module, communicator, with_bucket_size(options, communicator, module->parameters().front().device(), where),
                   where, Trained(*module)) {}

DataParallel::DataParallel(std::shared_ptr<torch::nn::Module> module, Communicator& communicator, const DdpOptions& options,
                           std::source_location where, const Trained& trained)
    : module_(std::move(module)),
      communicator_(communicator),
      options_(options),
      where_(where),
      has_buffers_(!module_->buffers().empty()),
      group_(communicator.background_group()) {
  make_reducer_for(trained);
}

void DataParallel::make_reducer_for(const Trained& trained) {
  // The old one takes its hooks off the parameters, and gives back its buckets; the logger shares it.
  logger_.reset();
  reducer_.reset();
  names_ = trained.names;
  reducer_ = make_reducer<c10d::Reducer>(
      trained.parameters, trained.buckets(options_), group_, trained.sparse, static_cast<int64_t>(Trained::bucket_cap(options_)),
      options_.find_unused_parameters, options_.gradient_as_bucket_view, trained.numbered_names(),
      static_cast<int64_t>(Trained::first_cap(options_)), /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false);
  logger_ = std::make_shared<c10d::Logger>(reducer_);
  reducer_->set_logger(logger_);
  if (options_.static_graph) reducer_->set_static_graph();
  auto chosen = choose_comm_hook(options_, group_);
  hook_state_ = std::move(chosen.state);
  if (chosen.hook) reducer_->register_comm_hook(std::move(chosen.hook));
}

void DataParallel::check_rebuild() const {
  if (join_ == nullptr) return;
  throw UsageError("Parameters of " + module_->name() +
                   " were frozen or unfrozen, or have another dtype, inside join_uneven_inputs, where some ranks may be out of "
                   "data already: do it before the scope begins.");
}

void DataParallel::rebuild() {
  make_reducer_for(Trained(*module_));
  stream_.reset();
  first_graph_seen_ = awaits_backward_ = false;
  ++rebuilds_;
}

/// What is done on the host here would not be done again at replays.
void DataParallel::check_recordable() const {
  if (!StepRecording::current()) return;
  if (join_ != nullptr) throw NotRecordable("join_uneven_inputs announces every collective to other ranks");
  if (hook_state_) throw NotRecordable("PowerSGD counts steps on the host");
  if (options_.find_unused_parameters && !options_.static_graph)
    throw NotRecordable("find_unused_parameters searches the autograd graph on the host");
}

/// A stream is recorded along with another only if it waits for that one, and the default stream never.
void DataParallel::follow_stream() {
  const auto device = torch_private::device_of(*reducer_);
  if (device.is_cpu()) return;
  const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (stream_ == stream) return;
  stream_ = stream;
  torch_private::use_current_stream(*reducer_);
}

void DataParallel::before_forward() {
  const bool trains = c10::GradMode::is_enabled();
  if (trains) {
    note_backward();  // what it left is averaged with the gradients of this pass
    check_recordable();
    follow_stream();
  }
  if (trains && syncs_.gradients) reducer_->prepare_for_forward();
  const Join::Start start{.rebuilds_buckets = trains && torch_private::will_rebuild(*reducer_),
                          .sends_buffers = has_buffers_ && options_.broadcast_buffers && syncs_.buffers};
  const bool sends = start.rebuilds_buckets || start.sends_buffers;
  const int source = join_ != nullptr && sends ? join_->tell_forward(number_in_join_, start) : 0;
  // Also where nothing is rebuilt: here a backward pass that did not reach all parameters is detected.
  if (trains) rebuild_buckets("forward", where_);
  if (start.sends_buffers) broadcast_buffers(source, "forward", where_);
}

void DataParallel::rebuild_buckets(const char* call, std::source_location where) {
  const auto rebuild = [this] {
    try {
      reducer_->rebuild_buckets();
    } catch (const c10::Error& error) {
      explain(error.what_without_backtrace());
    }
  };
  if (torch_private::will_rebuild(*reducer_)) {
    communicator_.passes().during(call, where, rebuild);
  } else {
    rebuild();
  }
}

void DataParallel::explain(const std::string& problem) const {
  const auto unused = numbers_of_unused(problem);
  if (unused.empty()) throw std::runtime_error(problem);
  std::string list;
  for (const size_t number : unused) list += (list.empty() ? "" : ", ") + (number < names_.size() ? names_[number] : "?");
  throw UsageError(
      "The last backward pass on rank " + std::to_string(communicator_.rank()) + " gave no gradient to " + list +
      ", so the gradients of the model could not be all-reduced. Make sure that all outputs of the model contribute to the loss, "
      "freeze unused parameters (requires_grad_(false)) before prepare, or set .ddp = {.find_unused_parameters = true}.");
}

void DataParallel::broadcast_buffers(int source, const char* call, std::source_location where) {
  std::vector<at::Tensor> buffers;
  // Through handles with versions of their own: a graph that has saved a buffer does not take this for a change by the user.
  for (const auto& buffer : module_->buffers()) {
    if (buffer.defined()) buffers.push_back(buffer.variable_data());
  }
  broadcast_packed(communicator_, buffers, source, call, where);
}

bool DataParallel::wants_outputs() const { return options_.static_graph ? !first_graph_seen_ : options_.find_unused_parameters; }

void DataParallel::after_forward(const std::vector<at::Tensor*>& outputs) {
  const bool trains = c10::GradMode::is_enabled() && syncs_.gradients;
  syncs_.buffers = trains;
  if (c10::GradMode::is_enabled()) local_forward_ = !syncs_.gradients;
  if (trains) {
    std::vector<at::Tensor> found;
    if (options_.find_unused_parameters && !options_.static_graph) {
      for (const at::Tensor* output : outputs) {
        if (output->defined()) found.push_back(*output);
      }
    }
    prepare_for_backward(found);
  }
  if (!wants_outputs()) return;
  std::vector<at::Tensor*> with_history;
  torch::autograd::variable_list through;
  for (at::Tensor* output : outputs) {
    if (!output->defined() || !output->grad_fn()) continue;
    with_history.push_back(output);
    through.push_back(*output);
  }
  if (through.empty()) return;
  const auto owner = c10::make_intrusive<SinkOwner>();
  owner->model = weak_from_this();
  const auto passed = OutputSink::apply(at::TensorList(through), owner);
  for (size_t i = 0; i < with_history.size(); ++i) *with_history[i] = passed[i];
}

void DataParallel::outputs_reached() {
  // Python does this under no_sync, too, where the reducer cannot take it.
  if (!options_.static_graph || first_graph_seen_ || !torch_private::expects_gradients(*reducer_)) return;
  first_graph_seen_ = true;
  torch::autograd::Engine::get_default_engine().queue_callback([this] {
    communicator_.passes().begin_waiting();
    reducer_->delay_all_reduce();
  });
}

void DataParallel::expect_gradients() {
  if (options_.find_unused_parameters && !options_.static_graph) {
    throw UsageError(
        "trigger_sync_in_backward cannot know which parameters a backward pass will use, so it cannot be combined with "
        "find_unused_parameters: use static_graph, or freeze unused parameters.");
  }
  prepare_for_backward({});
}

void DataParallel::prepare_for_backward(const std::vector<at::Tensor>& outputs) {
  if (options_.static_graph && !first_graph_seen_) torch_private::forget_graph(*reducer_);
  reducer_->prepare_for_backward(outputs);
  awaits_backward_ = true;
}

std::string bypassed_model(const torch::nn::Module& module, std::source_location prepared,
                           std::optional<std::source_location> where) {
  return "A backward pass" + (where ? ", that" + at_line(*where) + "," : "") + " reached the parameters of " + module.name() +
         " (prepared" + at_line(prepared) + ") from a forward pass that did not go through the prepared model.";
}

bool DataParallel::note_backward() {
  if (torch_private::expects_gradients(*reducer_)) return false;  // the next forward pass or step reports what it waits for
  if (std::exchange(awaits_backward_, false)) syncs_.local_gradients = false;
  if (!torch_private::take_unreduced_pass(*reducer_) || shares_parameters_) return false;
  syncs_.local_gradients = true;
  return syncs_.gradients && !local_forward_;
}

void DataParallel::check_backward(std::optional<std::source_location> where) {
  if (!note_backward()) return;
  throw UsageError(
      bypassed_model(*module_, where_, where) +
      " Its gradients are not averaged over the ranks, so the replicas would diverge. Call the prepared model, as in "
      "model(inputs): model->forward(inputs) and the module itself bypass it. Several forward passes, or a weight penalty, need "
      "one backward pass of the sum of their losses; for gradients that stay on their rank, use no_sync(model).");
}

void DataParallel::check_step() {
  check_backward({});
  try {
    torch_private::ensure_prior_reduction_finished(*reducer_);
  } catch (const c10::Error& error) {
    explain(error.what_without_backtrace());
  }
  if (!syncs_.local_gradients) return;
  if (!syncs_.gradients) {
    if (!stepped_alone_ && !expects_local_steps_ && communicator_.rank() == 0) {
      get_logger("accelerate")
          .warning({.main_process_only = false},
                   "{} (prepared{}) was stepped inside no_sync, on {} ranks: each rank trains with its own gradients only, and "
                   "checkpoints hold the weights of the main process. End the scope before the last backward pass of a step, or "
                   "average weights with LocalSGD.",
                   module_->name(), at_line(where_), communicator_.size());
    }
    stepped_alone_ = true;
    if (auto* recording = StepRecording::current()) recording->add({.run = [this] { stepped_alone_ = true; }});
  } else {
    throw UsageError("An optimizer would step " + module_->name() + " (prepared" + at_line(where_) +
                     ") with gradients that were not averaged over the ranks: its last backward passes ran under no_sync, or "
                     "bypassed the prepared model. Run the last one before a step through the prepared model and outside "
                     "no_sync; accumulate(model) does this automatically.");
  }
}

std::vector<std::string> DataParallel::gradient_order() const {
  std::vector<std::string> order;
  for (const size_t number : torch_private::gradient_order(*reducer_)) order.push_back(names_[number]);
  return order;
}

std::vector<size_t> DataParallel::numbers_of(const std::vector<std::string>& names) const {
  std::vector<size_t> numbers;
  for (const auto& name : names) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) throw UsageError("it lists a parameter " + name + ", which is not trained here.");
    numbers.push_back(static_cast<size_t>(found - names_.begin()));
  }
  return numbers;
}

void DataParallel::expect_gradient_order(const std::vector<std::string>& names) {
  if (!std::is_permutation(names.begin(), names.end(), names_.begin(), names_.end())) return;
  torch_private::expect_order(*reducer_, numbers_of(names));
}

std::optional<StateDict> DataParallel::hook_state() const {
  if (!hook_state_) return {};
  StateDict state = hook_state_->state_dict();
  const auto order = gradient_order();
  state["order"] = Value::List(order.begin(), order.end());
  return state;
}

void DataParallel::load_hook_state(const StateDict& state) {
  if (!hook_state_) return;
  const auto order = numbers_of(from_value<std::vector<std::string>>(state.at("order")));
  if (!order.empty() && order.size() != names_.size()) {
    throw UsageError("it lists " + std::to_string(order.size()) + " parameters, but " + std::to_string(names_.size()) +
                     " are trained here.");
  }
  if (const auto now = torch_private::gradient_order(*reducer_);
      !reducer_->should_rebuild_buckets() && !order.empty() && now != order)
    throw UsageError("gradients were ready in a different order than in this run: call load_state before the first step.");
  hook_state_->load_state_dict(state, torch_private::device_of(*reducer_));
  if (!order.empty()) torch_private::expect_order(*reducer_, order);
}

void DataParallel::set_join(Join* join, size_t number) {
  join_ = join;
  number_in_join_ = number;
  if (join == nullptr) {
    group_->before_all_reduce({});
  } else {
    group_->before_all_reduce([join, number](const at::Tensor& tensor) { join->tell_all_reduce(number, tensor); });
  }
}

void DataParallel::follow_forward(const Join::Start& start, int source, const char* call, std::source_location where) {
  if (start.rebuilds_buckets) {
    // A rank without a backward pass has no order; the main process's counts.
    reducer_->push_rebuilt_params_for_all_indices();
    rebuild_buckets(call, where);
  }
  if (start.sends_buffers) broadcast_buffers(source, call, where);
}

void DataParallel::broadcast_all(int source, const char* call, std::source_location where) {
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : module_->parameters()) {
    if (parameter.defined()) parameters.push_back(parameter);
  }
  broadcast_packed(communicator_, parameters, source, call, where);
  if (has_buffers_ && options_.broadcast_buffers) broadcast_buffers(source, call, where);
  // Whatever each had done last: the next forward pass begins with the same collective everywhere.
  syncs_.buffers = true;
  weights_averaged();
}

}  // namespace accelerate::detail
