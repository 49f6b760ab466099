#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <type_traits>
#include <utility>

#include "residency/host_memory.h"
#include "training/fused_kernel.h"

namespace accelerate::detail {
namespace {

// AdamW and Adam: alike but for their types and the kernel.
template <class Options, class State>
class FusedAdam final : public FusedKernel {
 public:
  using FusedKernel::FusedKernel;
  static constexpr bool kIsAdamW = std::is_same_v<Options, torch::optim::AdamWOptions>;

  FusedOptimizer kind() const override { return kIsAdamW ? FusedOptimizer::adamw : FusedOptimizer::adam; }

  size_t state_tensors(const torch::optim::OptimizerOptions& options) const override { return of(options).amsgrad() ? 3 : 2; }

  FusedState find_state(const at::Tensor& parameter) const override {
    const auto found = optimizer().state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer().state().end()) return {};
    return tensors_of(static_cast<State&>(*found->second));
  }

  FusedState make_state(const torch::optim::OptimizerOptions& options, const at::Tensor& parameter) override {
    auto& slot = optimizer().state()[parameter.unsafeGetTensorImpl()];
    if (!slot) {
      auto state = std::make_unique<State>();
      state->exp_avg(zeros_beside(parameter));
      state->exp_avg_sq(zeros_beside(parameter));
      slot = std::move(state);
    }
    auto& state = static_cast<State&>(*slot);
    if (of(options).amsgrad() && !state.max_exp_avg_sq().defined()) state.max_exp_avg_sq(zeros_beside(parameter));
    return tensors_of(state);
  }

  void launch(const FusedCall& call, const StepConditions& conditions) override {
    const Options& options = of(call.group->options());
    const auto fused = [](const auto&... arguments) {
      if constexpr (kIsAdamW) {
        at::_fused_adamw_(arguments...);
      } else {
        at::_fused_adam_(arguments...);
      }
    };
    call.with_rate(options.lr(), [&](const auto& rate) {
      fused(call.parameters, call.gradients, call.states[0], call.states[1], call.states[2], call.step_tensors, rate,
            std::get<0>(options.betas()), std::get<1>(options.betas()), options.weight_decay(), options.eps(), options.amsgrad(),
            /*maximize=*/false, conditions.divisor, conditions.found_inf);
    });
  }

  bool equal_but_for_rate(const torch::optim::OptimizerOptions& a, const torch::optim::OptimizerOptions& b) const override {
    Options same_rate = of(a);
    same_rate.lr(of(b).lr());
    return same_rate == of(b);
  }

 private:
  static const Options& of(const torch::optim::OptimizerOptions& options) { return static_cast<const Options&>(options); }
  static FusedState tensors_of(State& state) {
    return {.tensors = {state.exp_avg(), state.exp_avg_sq(), state.max_exp_avg_sq()}, .steps = &state.step()};
  }
};

}  // namespace

std::unique_ptr<FusedKernel> make_fused_adamw(torch::optim::Optimizer& adamw) {
  return std::make_unique<FusedAdam<torch::optim::AdamWOptions, torch::optim::AdamWParamState>>(adamw);
}

std::unique_ptr<FusedKernel> make_fused_adam(torch::optim::Optimizer& adam) {
  return std::make_unique<FusedAdam<torch::optim::AdamOptions, torch::optim::AdamParamState>>(adam);
}

}  // namespace accelerate::detail
