#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/ones.h>
#include <accelerate/parallel/sync_batch_norm.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include <mutex>
#include <vector>

#include "distributed/communicator.h"
#include "parallel/joined_batch_norm.h"

namespace accelerate {

using namespace detail;
namespace {

/// Tells that a tensor belongs to a layer that was converted. It is kept where autograd keeps hooks: with the tensor, whatever
/// becomes of its memory, dtype and device.
struct SyncMark : torch::autograd::FunctionPreHook {
  std::weak_ptr<torch::nn::Module> layer;
  std::shared_ptr<Communicator> communicator;
  std::source_location where;
  /// The tensor is there for the mark alone: the layer has no weight.
  bool stands_in = false;

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override { return gradients; }
};

const SyncMark* mark_of(const std::optional<at::Tensor>& tensor) {
  if (!tensor || !tensor->defined() || torch::autograd::impl::get_autograd_meta(*tensor) == nullptr) return nullptr;
  for (const auto& hook : torch::autograd::impl::hooks(*tensor)) {
    if (const auto* mark = dynamic_cast<const SyncMark*>(hook.get())) return mark;
  }
  return nullptr;
}

/// LibTorch's layers cannot be told to do otherwise, and members of a module hold them by their type: it is their operator that
/// does otherwise for the tensors of a converted layer.
at::Tensor batch_norm_of_layer(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                               const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
                               const std::optional<at::Tensor>& running_var, bool training, double momentum, double eps,
                               bool cudnn_enabled) {
  const SyncMark* mark = mark_of(running_mean);
  if (mark == nullptr) mark = mark_of(weight);
  if (mark == nullptr) {
    return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
  }
  const auto real_weight = mark->stands_in ? std::optional<at::Tensor>() : weight;
  const auto layer = mark->layer.lock();
  if (!training || !layer || !layer->is_training()) {
    return at::native::batch_norm(input, real_weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
  }
  return joined_batch_norm({.input = input,
                            .weight = real_weight.value_or(at::Tensor()),
                            .bias = bias.value_or(at::Tensor()),
                            .running_mean = running_mean.value_or(at::Tensor()),
                            .running_var = running_var.value_or(at::Tensor()),
                            .momentum = momentum,
                            .eps = eps},
                           mark->communicator, mark->where);
}

/// Once, when a layer is first converted: programs without one keep LibTorch's operator.
void replace_batch_norm() {
  static std::once_flag once;
  static std::vector<torch::Library> replaced;
  std::call_once(once, [] {
    for (const auto key :
         {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
      replaced.emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__).impl("batch_norm", batch_norm_of_layer);
    }
  });
}

template <class Layer>
bool convert_layer(const std::shared_ptr<torch::nn::Module>& module, const ProcessState& state, std::source_location where) {
  auto* layer = module->as<Layer>();
  if (layer == nullptr) return false;
  if (!state.use_distributed() || mark_of(layer->running_mean) || mark_of(layer->weight)) return true;
  replace_batch_norm();
  auto mark = std::make_unique<SyncMark>();
  mark->layer = module;
  mark->communicator = state.communicator();
  mark->where = where;
  if (!layer->running_mean.defined() && !layer->weight.defined()) {
    mark->stands_in = true;
    layer->weight = at::ones({1});
  }
  torch::autograd::impl::add_hook(layer->running_mean.defined() ? layer->running_mean : layer->weight, std::move(mark));
  return true;
}

}  // namespace

int64_t convert_sync_batchnorm(const ProcessState& state, torch::nn::Module& module, std::source_location where) {
  int64_t converted = 0;
  for (const auto& part : module.modules(/*include_self=*/true)) {
    converted += convert_layer<torch::nn::BatchNorm1dImpl>(part, state, where) ||
                 convert_layer<torch::nn::BatchNorm2dImpl>(part, state, where) ||
                 convert_layer<torch::nn::BatchNorm3dImpl>(part, state, where);
  }
  return converted;
}

}  // namespace accelerate
