#include "training/fused_step.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_div.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <optional>
#include <typeinfo>
#include <utility>

#include "training/fusable.h"
#include "training/fused_check.h"
#include "training/fused_kernel.h"
#include "training/serial_scope.h"
#include "training/step_recording.h"
#include "training/tensor_group.h"

namespace accelerate::detail {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

class PlainStep : public OptimizerStep {
 public:
  explicit PlainStep(Optimizer& optimizer) : optimizer_(optimizer) {}
  void take(const std::optional<at::Tensor>&) override { optimizer_.step(); }
  at::Tensor take(const std::function<at::Tensor()>& closure) override { return optimizer_.step(closure); }
  RecordedStep record(const StepConditions&) override {
    throw NotRecordable("of the optimizers of LibTorch only AdamW, Adam and SGD can be recorded");
  }

 private:
  Optimizer& optimizer_;
};

// Tensors that are not worth waking other threads for: the grain of LibTorch's own operators.
constexpr int64_t kSmall = 32768;

/// Sorts parameters into calls, lets the optimizer itself step those that no kernel steps rightly, then launches the kernel for
/// each call.
class FusedStep final : public OptimizerStep {
 public:
  /// Tries the kernel, where it has not been: not when a step is recorded. `on_trial`, it is the one that is tried.
  FusedStep(std::unique_ptr<FusedKernel> kernel, bool on_trial)
      : kernel_(std::move(kernel)), optimizer_(kernel_->optimizer()), on_trial_(on_trial) {
    for (const auto& group : optimizer_.param_groups()) {
      for (const auto& parameter : group.params()) is_stepped_rightly(parameter);
    }
  }

  bool can_divide() const override { return true; }

  void take(const std::optional<at::Tensor>& divisor) override {
    const at::NoGradGuard no_grad;
    const Cleaner cleaner{*this};
    StepConditions conditions{.divisor = divisor};
    if (!sort()) {
      if (divisor) divide_gradients(optimizer_, *divisor);
      conditions = {};
      step_refused();
    }
    launch_and_count(conditions);
  }

  std::function<void()> step_unless_inf(const StepConditions& conditions) override {
    const at::NoGradGuard no_grad;
    const Cleaner cleaner{*this};
    if (!sort()) return {};
    // A call that fills a state would leave it empty when it is skipped.
    for (size_t i = 0; i < used_; ++i) {
      if (calls_[i].parameters.front().device() != conditions.found_inf->device() || calls_[i].begins) return {};
    }
    launch_and_count(conditions);
    return [this, parameters = parameters_of(calls_.begin(), calls_.begin() + static_cast<ptrdiff_t>(used_))] {
      uncount(parameters);
    };
  }

  RecordedStep record(const StepConditions& conditions) override {
    const at::NoGradGuard no_grad;
    const Cleaner cleaner{*this};
    refuse_to_begin();
    if (!sort())
      throw NotRecordable("no fused kernel supports one of the parameters: it is sparse, overlapping or of an unsupported dtype");
    const auto calls = std::make_shared<std::vector<FusedCall>>();
    for (size_t i = 0; i < used_; ++i) {
      FusedCall& call = calls->emplace_back(std::exchange(calls_[i], {}));
      calls_[i].numbers = call.numbers;  // the next step sets them
      call.begin_recording();
      launch(call, conditions);
      call.gradients.clear();
    }
    return {.fits =
                [this, calls, sizes = group_sizes()] {
                  return group_sizes() == sizes &&
                         std::all_of(calls->begin(), calls->end(), [this](const FusedCall& call) { return still_fits(call); });
                },
            .begin = [calls] { begin_replay(*calls); },
            .rollback = [this, parameters = parameters_of(calls->begin(), calls->end())] { uncount(parameters); }};
  }

  at::Tensor take(const std::function<at::Tensor()>& closure) override {
    at::Tensor loss;
    {
      const at::AutoGradMode with_gradients(true);
      loss = closure();
    }
    take(std::nullopt);
    return loss;
  }

 private:
  struct Cleaner {
    FusedStep& step;
    ~Cleaner() {
      for (size_t i = 0; i < step.used_; ++i) step.calls_[i].clear();
      step.used_ = 0;
    }
  };

  bool is_stepped_rightly(const at::Tensor& parameter) const {
    return is_fusable(parameter) && (on_trial_ || is_right(kernel_->kind(), parameter));
  }

  /// Sorts all parameters that have gradients into calls; false when some were refused.
  bool sort() {
    has_threads_ = at::get_num_threads() > 1;
    bool refused = false;
    for (const auto& group : optimizer_.param_groups()) {
      const size_t tensors = kernel_->state_tensors(group.options());
      for (const auto& parameter : group.params()) {
        const auto& gradient = parameter.grad();
        if (!gradient.defined()) continue;
        const bool added = is_stepped_rightly(parameter) && same_layout(gradient, parameter) && add(group, parameter, tensors);
        refused = refused || !added;
      }
    }
    return !refused;
  }

  /// False where the state does not lie as the parameter does.
  bool add(const OptimizerParamGroup& group, const at::Tensor& parameter, size_t tensors) {
    FusedState state = kernel_->make_state(group.options(), parameter);
    for (size_t i = 0; i < tensors; ++i) {
      if (!state.tensors[i].defined() || !same_layout(state.tensors[i], parameter)) return false;
    }
    call_for(group, parameter, state.begins).add(parameter, std::move(state), tensors);
    return true;
  }

  /// The call for parameters of this kind, or a new one.
  FusedCall& call_for(const OptimizerParamGroup& group, const at::Tensor& parameter, bool begins) {
    const bool small = has_threads_ && parameter.is_cpu() && parameter.numel() < kSmall;
    for (size_t i = used_; i-- > 0 && calls_[i].group == &group;) {
      if (calls_[i].takes(parameter, small, begins)) return calls_[i];
    }
    if (used_ == calls_.size()) calls_.emplace_back();
    FusedCall& call = calls_[used_++];
    call.group = &group;
    call.small = small;
    call.begins = begins;
    return call;
  }

  void launch_and_count(const StepConditions& conditions) {
    for (size_t i = 0; i < used_; ++i) launch(calls_[i], conditions);
    for (size_t i = 0; i < used_; ++i) count(calls_[i]);
  }

  void launch(FusedCall& call, const StepConditions& conditions) {
    {
      std::optional<SerialScope> serial;
      if (call.small) serial.emplace();
      // Autograd looks at every tensor of every list, and has nothing to record here.
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      if (!call.is_recorded()) {
        call.share_counts();
        call.tell_counts();
      }
      kernel_->launch(call, conditions);
    }
    // What it would have done: a backward pass that still needs the old values has to find out.
    for (const auto& parameter : call.parameters) {
      if (!parameter.is_inference()) parameter.unsafeGetTensorImpl()->bump_version();
    }
  }

  static void count(FusedCall& call) {
    for (int64_t* steps : call.steps) ++*steps;
  }
  /// By parameters: their state may be another one by now.
  void uncount(const std::vector<at::Tensor>& parameters) const {
    for (const auto& parameter : parameters) {
      if (int64_t* steps = kernel_->find_state(parameter).steps) --*steps;
    }
  }

  /// A state that is made in a recording would be created again at every replay.
  void refuse_to_begin() const {
    for (const auto& group : optimizer_.param_groups()) {
      if (kernel_->state_tensors(group.options()) == 0) continue;
      for (const auto& parameter : group.params()) {
        if (parameter.grad().defined() && !kernel_->find_state(parameter).tensors[0].defined())
          throw NotRecordable("the optimizer steps a parameter for the first time");
      }
    }
  }

  /// Whether options and state are still those of a recorded call; the rate may have changed.
  bool still_fits(const FusedCall& call) const {
    if (!kernel_->equal_but_for_rate(call.group->options(), *call.recorded_options)) return false;
    for (size_t i = 0; i < call.parameters.size(); ++i) {
      const FusedState state = kernel_->find_state(call.parameters[i]);
      if (!call.steps.empty() && state.steps != call.steps[i]) return false;
      for (size_t kind = 0; kind < kMostStateTensors; ++kind) {
        if (!call.states[kind].empty() && !state.tensors[kind].is_same(call.states[kind][i])) return false;
      }
    }
    return call.shares_rightly();
  }

  static void begin_replay(std::vector<FusedCall>& calls) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (auto& call : calls) {
      call.tell_rate();
      call.tell_counts();
    }
    for (auto& call : calls) count(call);
  }

  template <class Iterator>
  static std::vector<at::Tensor> parameters_of(Iterator begin, Iterator end) {
    std::vector<at::Tensor> parameters;
    for (; begin != end; ++begin) parameters.insert(parameters.end(), begin->parameters.begin(), begin->parameters.end());
    return parameters;
  }

  std::vector<size_t> group_sizes() const {
    std::vector<size_t> sizes;
    for (const auto& group : optimizer_.param_groups()) sizes.push_back(group.params().size());
    return sizes;
  }

  void step_refused() {
    HiddenGradients hidden;
    for (size_t i = 0; i < used_; ++i) {
      for (const auto& parameter : calls_[i].parameters) hidden.hide(parameter);
    }
    optimizer_.step();
  }

  const std::unique_ptr<FusedKernel> kernel_;
  Optimizer& optimizer_;
  // Calls keep the memory of their lists from step to step.
  std::vector<FusedCall> calls_;
  size_t used_ = 0;
  bool has_threads_ = false;
  const bool on_trial_;
};

std::unique_ptr<FusedKernel> kernel_of(Optimizer& optimizer) {
  if (typeid(optimizer) == typeid(torch::optim::AdamW)) return make_fused_adamw(optimizer);
  if (typeid(optimizer) == typeid(torch::optim::Adam)) return make_fused_adam(optimizer);
  if (typeid(optimizer) == typeid(torch::optim::SGD)) return make_fused_sgd(optimizer);
  return nullptr;
}

}  // namespace

void divide_gradients(Optimizer& optimizer, const at::Tensor& divisor) {
  const at::NoGradGuard no_grad;
  std::vector<TensorGroup> kinds;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto& gradient = parameter.grad();
      if (gradient.defined()) add_to_groups(kinds, gradient.is_sparse() ? gradient._values() : gradient);
    }
  }
  for (const auto& kind : kinds) at::_foreach_div_(kind.tensors, divisor.to(kind.device));
}

std::unique_ptr<OptimizerStep> make_step(Optimizer& optimizer, bool on_trial) {
  if (auto kernel = kernel_of(optimizer)) return std::make_unique<FusedStep>(std::move(kernel), on_trial);
  return std::make_unique<PlainStep>(optimizer);
}

}  // namespace accelerate::detail
