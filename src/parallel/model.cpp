#include <accelerate/checkpoint/module_state.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/collectives.h>
#include <accelerate/parallel/model.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "distributed/tensor_text.h"
#include "parallel/data_parallel.h"
#include "parallel/packed_broadcast.h"
#include "training/zero_gradient.h"

namespace accelerate::detail {
namespace {

/// Ranks whose models differ would exchange the wrong tensors without a word, so they compare them first.
void check_same_model(const ProcessState& state, const torch::nn::Module& module, std::source_location where) {
  std::vector<std::string> mine;
  for (const auto& [name, tensor] : state_dict(module)) mine.push_back(name + " " + describe(tensor));
  // What is trained is exchanged: that, too, must be the same everywhere.
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
      difference = "process " + std::to_string(state.process_index()) + " has " + here + " where the main process has " + there;
  }
  // Every process learns of it, so that none goes on alone.
  for (const auto& report : gather_object(state, std::vector<std::string>{difference}, where)) {
    if (!report.empty()) throw DistributedError("The model to prepare is not the same on all processes: " + report + ".");
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
    : module_(std::move(module)), state_(state), options_(options) {
  if (!module_) throw UsageError("prepare was given an empty module.");
  check_ddp_options(options.ddp);
  // "cpu:0", taken literally, would copy a module that is on the CPU already.
  if (options.place) module_->to(state.device().is_cpu() ? at::Device(at::kCPU) : state.device());
  if (!state.use_distributed() || options.evaluation_mode) return;
  check_same_model(state, *module_, where);
  broadcast_packed(*state.communicator(), start_tensors(*module_, options.ddp.broadcast_buffers), 0, "prepare", where);
  if (is_trained(*module_)) data_parallel_ = std::make_shared<DataParallel>(module_, *state.communicator(), options.ddp, where);
}

ModelCore::~ModelCore() = default;

void ModelCore::train(bool on) { module_->train(on); }

void ModelCore::zero_grad(bool set_to_none) {
  for (const auto& parameter : module_->parameters()) zero_gradient(parameter, set_to_none);
}

std::vector<at::Tensor> ModelCore::parameters() const { return module_->parameters(); }

TensorDict ModelCore::named_parameters() const {
  TensorDict named;
  for (const auto& item : module_->named_parameters()) named[item.key()] = item.value();
  return named;
}

void ModelCore::before_forward() const {
  if (data_parallel_) data_parallel_->before_forward();
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
    throw UsageError(
        "The forward pass of " + module_->name() +
        " returns something in which tensors cannot be found, and find_unused_parameters and static_graph need them: return a "
        "tensor, or tensors in a struct, tuple, vector, map or optional.");
  }
  data_parallel_->after_forward(outputs == nullptr ? std::vector<at::Tensor*>() : outputs->tensors);
}

void run_backward(const ProcessState& state, std::source_location where, const std::function<void()>& backward) {
  if (state.use_distributed()) {
    state.communicator()->during("backward", where, backward);
  } else {
    backward();
  }
}

}  // namespace accelerate::detail
