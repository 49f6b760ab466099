#include "training/fused_step.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <optional>
#include <typeinfo>

#include "training/fusable.h"
#include "training/serial_scope.h"

namespace accelerate::detail {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

class PlainStep : public OptimizerStep {
 public:
  explicit PlainStep(Optimizer& optimizer) : optimizer_(optimizer) {}
  void take() override { optimizer_.step(); }
  at::Tensor take(const std::function<at::Tensor()>& closure) override { return optimizer_.step(closure); }

 private:
  Optimizer& optimizer_;
};

// Tensors that are not worth waking other threads for: the grain of LibTorch's own operators.
constexpr int64_t kSmall = 32768;

/// What is common to the calls of all kernels: parameters of one group, device and dtype, with their gradients.
struct FusedCall {
  const OptimizerParamGroup* group = nullptr;
  bool small = false;
  std::vector<at::Tensor> parameters, gradients;

  bool takes(const at::Tensor& parameter, bool is_small) const {
    return small == is_small && parameters.front().device() == parameter.device() &&
           parameters.front().scalar_type() == parameter.scalar_type();
  }
  void add(const at::Tensor& parameter) {
    parameters.push_back(parameter);
    gradients.push_back(parameter.grad());
  }
  // Nothing is held between steps: a gradient that is set to none must give its memory back.
  void clear() {
    group = nullptr;
    parameters.clear();
    gradients.clear();
  }
};

/// Sorts parameters into calls, lets the optimizer itself step those that no kernel steps rightly, then makes the calls. `Call`
/// is a FusedCall; `Derived` has `bool add(group, parameter)`, which refuses a parameter, and `void make(call)`.
template <class Derived, class Call>
class FusedStep : public OptimizerStep {
 public:
  explicit FusedStep(Optimizer& optimizer) : optimizer_(optimizer) {}

  void take() override {
    const at::NoGradGuard no_grad;
    const Cleaner cleaner{*this};
    has_threads_ = at::get_num_threads() > 1;
    bool refused = false;
    for (const auto& group : optimizer_.param_groups()) {
      for (const auto& parameter : group.params()) {
        const auto& gradient = parameter.grad();
        if (!gradient.defined()) continue;
        const bool added = is_fusable(parameter) && lies_like(gradient, parameter) && derived().add(group, parameter);
        refused = refused || !added;
      }
    }
    if (refused) step_refused();
    for (size_t i = 0; i < used_; ++i) launch(calls_[i]);
  }

  at::Tensor take(const std::function<at::Tensor()>& closure) override {
    at::Tensor loss;
    {
      const at::AutoGradMode with_gradients(true);
      loss = closure();
    }
    take();
    return loss;
  }

 protected:
  /// The call that `matches` among those of this kind of parameter, or a new one.
  template <class Matches>
  Call& call_for(const OptimizerParamGroup& group, const at::Tensor& parameter, const Matches& matches) {
    const bool small = has_threads_ && parameter.is_cpu() && parameter.numel() < kSmall;
    for (size_t i = used_; i-- > 0 && calls_[i].group == &group;) {
      if (calls_[i].takes(parameter, small) && matches(calls_[i])) return calls_[i];
    }
    if (used_ == calls_.size()) calls_.emplace_back();
    calls_[used_].group = &group;
    calls_[used_].small = small;
    return calls_[used_++];
  }

  Optimizer& optimizer_;

 private:
  struct Cleaner {
    FusedStep& step;
    ~Cleaner() {
      for (size_t i = 0; i < step.used_; ++i) step.calls_[i].clear();
      step.used_ = 0;
    }
  };

  Derived& derived() { return static_cast<Derived&>(*this); }

  void launch(Call& call) {
    {
      std::optional<SerialScope> serial;
      if (call.small) serial.emplace();
      // Autograd looks at every tensor of every list, and has nothing to record here.
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      derived().make(call);
    }
    // What it would have done: a backward pass that still needs the old values has to find out.
    for (const auto& parameter : call.parameters) {
      if (!parameter.is_inference()) parameter.unsafeGetTensorImpl()->bump_version();
    }
  }

  void step_refused() {
    HiddenGradients hidden;
    for (size_t i = 0; i < used_; ++i) {
      for (const auto& parameter : calls_[i].parameters) hidden.hide(parameter);
    }
    optimizer_.step();
  }

  // Calls keep the memory of their lists from step to step.
  std::vector<Call> calls_;
  size_t used_ = 0;
  bool has_threads_ = false;
};

template <class State>
struct AdamCall : FusedCall {
  std::vector<State*> states;
  std::vector<at::Tensor> exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps;
  // The kernels want the count of steps as float tensors on the device; one serves all parameters that have the same count.
  std::vector<at::Tensor> counts;

  void clear() {
    FusedCall::clear();
    for (auto* list : {&exp_avgs, &exp_avg_sqs, &max_exp_avg_sqs, &steps}) list->clear();
    states.clear();
  }

  /// Fills `steps` with the counts of the step to be taken.
  void count() {
    if (!counts.empty() && counts.front().device() != parameters.front().device()) counts.clear();
    size_t used = 0;
    int64_t last = -1;
    for (const auto* state : states) {
      const auto step = state->step() + 1;
      if (step != last) {
        if (used == counts.size()) counts.push_back(at::empty({}, parameters.front().options().dtype(at::kFloat)));
        set(counts[used++], step);
        last = step;
      }
      steps.push_back(counts[used - 1]);
    }
  }

 private:
  static void set(at::Tensor& count, int64_t step) {
    if (count.is_cpu()) {
      *count.mutable_data_ptr<float>() = static_cast<float>(step);
    } else {
      count.fill_(step);
    }
  }
};

// AdamW and Adam: alike but for their types and the kernel.
template <class Options, class State>
class FusedAdam : public FusedStep<FusedAdam<Options, State>, AdamCall<State>> {
 public:
  using Call = AdamCall<State>;
  using FusedStep<FusedAdam, Call>::FusedStep;

  bool add(const OptimizerParamGroup& group, const at::Tensor& parameter) {
    const bool amsgrad = options_of(group).amsgrad();
    State& state = state_of(parameter, amsgrad);
    if (!fits(state.exp_avg(), parameter) || !fits(state.exp_avg_sq(), parameter)) return false;
    if (amsgrad && !fits(state.max_exp_avg_sq(), parameter)) return false;
    Call& call = this->call_for(group, parameter, [](const Call&) { return true; });
    call.add(parameter);
    call.states.push_back(&state);
    call.exp_avgs.push_back(state.exp_avg());
    call.exp_avg_sqs.push_back(state.exp_avg_sq());
    if (amsgrad) call.max_exp_avg_sqs.push_back(state.max_exp_avg_sq());
    return true;
  }

  void make(Call& call) {
    call.count();
    const auto& options = options_of(*call.group);
    const auto& [beta1, beta2] = options.betas();
    const auto kernel = [&](auto&& fused) {
      fused(call.parameters, call.gradients, call.exp_avgs, call.exp_avg_sqs, call.max_exp_avg_sqs, call.steps, options.lr(),
            beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false);
    };
    if constexpr (std::is_same_v<Options, torch::optim::AdamWOptions>) {
      kernel([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
    } else {
      kernel([](auto&&... arguments) { at::_fused_adam_(arguments...); });
    }
    for (auto* state : call.states) state->step(state->step() + 1);
  }

 private:
  static const Options& options_of(const OptimizerParamGroup& group) { return static_cast<const Options&>(group.options()); }
  static bool fits(const at::Tensor& tensor, const at::Tensor& parameter) {
    return tensor.defined() && lies_like(tensor, parameter);
  }

  State& state_of(const at::Tensor& parameter, bool amsgrad) {
    auto& slot = this->optimizer_.state()[parameter.unsafeGetTensorImpl()];
    if (!slot) {
      auto state = std::make_unique<State>();
      state->exp_avg(at::zeros_like(parameter));
      state->exp_avg_sq(at::zeros_like(parameter));
      slot = std::move(state);
    }
    auto& state = static_cast<State&>(*slot);
    if (amsgrad && !state.max_exp_avg_sq().defined()) state.max_exp_avg_sq(at::zeros_like(parameter));
    return state;
  }
};

struct SgdCall : FusedCall {
  bool first = false;
  std::vector<at::Tensor> momentum_buffers;

  void clear() {
    FusedCall::clear();
    momentum_buffers.clear();
  }
};

class FusedSgd : public FusedStep<FusedSgd, SgdCall> {
 public:
  using FusedStep::FusedStep;

  bool add(const OptimizerParamGroup& group, const at::Tensor& parameter) {
    if (options_of(group).momentum() == 0) {
      call_for(group, parameter, [](const SgdCall&) { return true; }).add(parameter);
      return true;
    }
    const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
    at::Tensor buffer;
    if (found != optimizer_.state().end()) buffer = static_cast<torch::optim::SGDParamState&>(*found->second).momentum_buffer();
    const bool first = !buffer.defined();
    if (first) buffer = at::empty_like(parameter);
    if (!lies_like(buffer, parameter)) return false;
    SgdCall& call = call_for(group, parameter, [&](const SgdCall& candidate) { return candidate.first == first; });
    call.first = first;
    call.add(parameter);
    call.momentum_buffers.push_back(std::move(buffer));
    return true;
  }

  void make(SgdCall& call) {
    const auto& options = options_of(*call.group);
    at::_fused_sgd_(call.parameters, call.gradients, call.momentum_buffers, options.weight_decay(), options.momentum(),
                    options.lr(), options.dampening(), options.nesterov(), /*maximize=*/false, call.first);
    if (call.first) remember(call);
  }

 private:
  static const torch::optim::SGDOptions& options_of(const OptimizerParamGroup& group) {
    return static_cast<const torch::optim::SGDOptions&>(group.options());
  }

  // Only now that they are filled: a step may fail before it comes to them.
  void remember(const SgdCall& call) {
    for (size_t i = 0; i < call.parameters.size(); ++i) {
      auto state = std::make_unique<torch::optim::SGDParamState>();
      state->momentum_buffer(call.momentum_buffers[i]);
      optimizer_.state()[call.parameters[i].unsafeGetTensorImpl()] = std::move(state);
    }
  }
};

}  // namespace

std::unique_ptr<OptimizerStep> make_step(Optimizer& optimizer) {
  using namespace torch::optim;
  if (typeid(optimizer) == typeid(AdamW)) return std::make_unique<FusedAdam<AdamWOptions, AdamWParamState>>(optimizer);
  if (typeid(optimizer) == typeid(Adam)) return std::make_unique<FusedAdam<AdamOptions, AdamParamState>>(optimizer);
  if (typeid(optimizer) == typeid(SGD)) return std::make_unique<FusedSgd>(optimizer);
  return std::make_unique<PlainStep>(optimizer);
}

}  // namespace accelerate::detail
