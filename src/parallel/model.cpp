#include <accelerate/checkpoint/module_state.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/collectives.h>
#include <accelerate/parallel/model.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "distributed/tensor_text.h"

namespace accelerate::detail {
namespace {

/// Ranks whose models differ would exchange the wrong tensors without a word, so they compare them first.
void check_same_model(const ProcessState& state, const TensorDict& tensors, std::source_location where) {
  std::vector<std::string> mine;
  for (const auto& [name, tensor] : tensors) mine.push_back(name + " " + describe(tensor));
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

void broadcast_tensors(const ProcessState& state, const TensorDict& tensors, std::source_location where) {
  const c10::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) at::Tensor(tensor).copy_(broadcast(state, tensor, 0, where));
}

}  // namespace

ModelCore::ModelCore(std::shared_ptr<torch::nn::Module> module, const ProcessState& state, bool place, std::source_location where)
    : module_(std::move(module)), state_(state) {
  if (!module_) throw UsageError("prepare was given an empty module.");
  // "cpu:0", taken literally, would copy a module that is on the CPU already.
  if (place) module_->to(state.device().is_cpu() ? at::Device(at::kCPU) : state.device());
  if (!state.use_distributed()) return;
  const auto tensors = state_dict(*module_);
  check_same_model(state, tensors, where);
  broadcast_tensors(state, tensors, where);
}

void ModelCore::train(bool on) { module_->train(on); }

std::vector<at::Tensor> ModelCore::parameters() const { return module_->parameters(); }

void ModelCore::before_forward() const {
  if (!state_.use_distributed() || !c10::GradMode::is_enabled()) return;
  for (const auto& parameter : module_->parameters()) {
    if (!parameter.requires_grad()) continue;
    throw UsageError("This version does not exchange gradients between processes yet, so training on " +
                     std::to_string(state_.num_processes()) +
                     " of them would silently go apart. Run the forward pass under torch::NoGradGuard, or on one process.");
  }
}

}  // namespace accelerate::detail
