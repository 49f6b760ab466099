#include <ATen/ops/_fused_sgd.h>
#include <torch/optim/sgd.h>

#include <utility>

#include "residency/host_memory.h"
#include "training/fused_kernel.h"

namespace accelerate::detail {
namespace {

class FusedSgd final : public FusedKernel {
 public:
  using FusedKernel::FusedKernel;
  using Options = torch::optim::SGDOptions;

  FusedOptimizer kind() const override { return FusedOptimizer::sgd; }

  size_t state_tensors(const torch::optim::OptimizerOptions& options) const override {
    return of(options).momentum() == 0 ? 0 : 1;
  }

  FusedState find_state(const at::Tensor& parameter) const override {
    const auto found = optimizer().state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer().state().end()) return {};
    return {.tensors = {static_cast<const torch::optim::SGDParamState&>(*found->second).momentum_buffer()}};
  }

  FusedState make_state(const torch::optim::OptimizerOptions& options, const at::Tensor& parameter) override {
    if (of(options).momentum() == 0) return {};
    FusedState state = find_state(parameter);
    state.begins = !state.tensors[0].defined();
    if (state.begins) state.tensors[0] = zeros_beside(parameter);
    return state;
  }

  void launch(const FusedCall& call, const StepConditions& conditions) override {
    const Options& options = of(call.group->options());
    call.with_rate(options.lr(), [&](const auto& rate) {
      at::_fused_sgd_(call.parameters, call.gradients, call.states[0], options.weight_decay(), options.momentum(), rate,
                      options.dampening(), options.nesterov(), /*maximize=*/false, call.begins, conditions.divisor,
                      conditions.found_inf);
    });
    if (call.begins) keep_buffers(call);
  }

  bool equal_but_for_rate(const torch::optim::OptimizerOptions& a, const torch::optim::OptimizerOptions& b) const override {
    Options same_rate = of(a);
    same_rate.lr(of(b).lr());
    return same_rate == of(b);
  }

 private:
  static const Options& of(const torch::optim::OptimizerOptions& options) { return static_cast<const Options&>(options); }

  // Only now that they are filled: a step may fail before it comes to them.
  void keep_buffers(const FusedCall& call) {
    for (size_t i = 0; i < call.parameters.size(); ++i) {
      auto state = std::make_unique<torch::optim::SGDParamState>();
      state->momentum_buffer(call.states[0][i]);
      optimizer().state()[call.parameters[i].unsafeGetTensorImpl()] = std::move(state);
    }
  }
};

}  // namespace

std::unique_ptr<FusedKernel> make_fused_sgd(torch::optim::Optimizer& sgd) { return std::make_unique<FusedSgd>(sgd); }

}  // namespace accelerate::detail
