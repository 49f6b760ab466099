#include "training/fused_step.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <optional>
#include <typeinfo>
#include <utility>

#include "training/fusable.h"
#include "training/fused_call.h"
#include "training/fused_check.h"
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

/// Sorts parameters into calls, lets the optimizer itself step those that no kernel steps rightly, then makes the calls. `Call`
/// is a FusedCall; `Derived` has `kKernel`, `bool add(group, parameter)`, which refuses a parameter, `void make(call,
/// conditions)`, `void count(call)` and `uncount(parameters)`, and what a recorded call needs: `refuse_to_begin()`,
/// `prepare_recording(call)`, `bool still_fits(call)` and `begin(call)`.
template <class Derived, class Call>
class FusedStep : public OptimizerStep {
 public:
  /// Tries the kernel, where it has not been: not when a step is recorded. `on_trial`, it is the one that is tried.
  FusedStep(Optimizer& optimizer, bool on_trial) : optimizer_(optimizer), on_trial_(on_trial) {
    for (const auto& group : optimizer.param_groups()) {
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
    for (size_t i = 0; i < used_; ++i) launch(calls_[i], conditions);
    for (size_t i = 0; i < used_; ++i) derived().count(calls_[i]);
  }

  std::function<void()> step_unless_inf(const StepConditions& conditions) override {
    const at::NoGradGuard no_grad;
    const Cleaner cleaner{*this};
    if (!sort()) return {};
    // A call that fills a state would leave it empty when it is skipped.
    for (size_t i = 0; i < used_; ++i) {
      if (calls_[i].parameters.front().device() != conditions.found_inf->device() || calls_[i].begins) return {};
    }
    for (size_t i = 0; i < used_; ++i) launch(calls_[i], conditions);
    for (size_t i = 0; i < used_; ++i) derived().count(calls_[i]);
    return [this, parameters = parameters_of(calls_.begin(), calls_.begin() + static_cast<ptrdiff_t>(used_))] {
      derived().uncount(parameters);
    };
  }

  RecordedStep record(const StepConditions& conditions) override {
    const at::NoGradGuard no_grad;
    const Cleaner cleaner{*this};
    derived().refuse_to_begin();
    if (!sort())
      throw NotRecordable("no fused kernel steps one of the parameters rightly: sparse, overlapping or of such a dtype");
    const auto calls = std::make_shared<std::vector<Call>>();
    for (size_t i = 0; i < used_; ++i) {
      Call& call = calls->emplace_back(std::exchange(calls_[i], {}));
      calls_[i].numbers = call.numbers;  // whoever steps next tells them
      call.recorded = true;
      derived().prepare_recording(call);
      launch(call, conditions);
      call.gradients.clear();
    }
    return {.fits =
                [this, calls, sizes = group_sizes()] {
                  return group_sizes() == sizes && std::all_of(calls->begin(), calls->end(),
                                                               [this](const Call& call) { return derived().still_fits(call); });
                },
            .begin =
                [this, calls] {
                  const at::AutoDispatchBelowADInplaceOrView below_autograd;
                  for (auto& call : *calls) derived().begin(call);
                  for (auto& call : *calls) derived().count(call);
                },
            .rollback = [this, parameters = parameters_of(calls->begin(), calls->end())] { derived().uncount(parameters); }};
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

  bool is_stepped_rightly(const at::Tensor& parameter) const {
    return is_fusable(parameter) && (on_trial_ || is_right(Derived::kKernel, parameter));
  }

  /// Sorts all parameters that have gradients into calls; false when some were refused.
  bool sort() {
    has_threads_ = at::get_num_threads() > 1;
    bool refused = false;
    for (const auto& group : optimizer_.param_groups()) {
      for (const auto& parameter : group.params()) {
        const auto& gradient = parameter.grad();
        if (!gradient.defined()) continue;
        const bool added = is_stepped_rightly(parameter) && same_layout(gradient, parameter) && derived().add(group, parameter);
        refused = refused || !added;
      }
    }
    return !refused;
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

  void launch(Call& call, const StepConditions& conditions) {
    {
      std::optional<SerialScope> serial;
      if (call.small) serial.emplace();
      // Autograd looks at every tensor of every list, and has nothing to record here.
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      derived().make(call, conditions);
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
  bool on_trial_;
};

template <class Options, class State>
struct AdamCall : FusedCall {
  std::vector<State*> states;
  std::vector<at::Tensor> exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps;
  std::optional<Options> recorded_options;

  void clear() {
    FusedCall::clear();
    for (auto* list : {&exp_avgs, &exp_avg_sqs, &max_exp_avg_sqs, &steps}) list->clear();
    states.clear();
  }

  /// The kernels want the count of steps as float tensors on the device; one serves all parameters that have the same count.
  void share_counts() {
    firsts.clear();
    for (size_t i = 0; i < states.size(); ++i) {
      if (i == 0 || states[i]->step() != states[firsts.back()]->step()) firsts.push_back(i);
    }
    make_numbers(firsts.size());
    for (size_t i = 0, shared = 0; i < states.size(); ++i) {
      if (shared + 1 < firsts.size() && firsts[shared + 1] == i) ++shared;
      steps.push_back(numbers->counts[shared]);
    }
  }
  /// Whether those who share a tensor still have the same count.
  bool shares_rightly() const {
    for (size_t i = 0, shared = 0; i < states.size(); ++i) {
      if (shared + 1 < firsts.size() && firsts[shared + 1] == i) ++shared;
      if (states[i]->step() != states[firsts[shared]]->step()) return false;
    }
    return true;
  }
  /// Those of the step to be taken.
  void tell_counts() {
    for (size_t i = 0; i < firsts.size(); ++i) set(numbers->counts[i], states[firsts[i]]->step() + 1);
  }

 private:
  // The first parameter of each count.
  std::vector<size_t> firsts;

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
class FusedAdam : public FusedStep<FusedAdam<Options, State>, AdamCall<Options, State>> {
 public:
  using Call = AdamCall<Options, State>;
  using FusedStep<FusedAdam, Call>::FusedStep;
  static constexpr auto kKernel = std::is_same_v<Options, torch::optim::AdamWOptions> ? FusedKernel::adamw : FusedKernel::adam;

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

  void make(Call& call, const StepConditions& conditions) {
    if (!call.recorded) {
      call.share_counts();
      call.tell_counts();
    }
    const auto& options = options_of(*call.group);
    const auto& [beta1, beta2] = options.betas();
    const auto kernel = [&](const auto& rate) {
      const auto fused = [&](auto&& function) {
        function(call.parameters, call.gradients, call.exp_avgs, call.exp_avg_sqs, call.max_exp_avg_sqs, call.steps, rate, beta1,
                 beta2, options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false, conditions.divisor,
                 conditions.found_inf);
      };
      if constexpr (kKernel == FusedKernel::adamw) {
        fused([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
      } else {
        fused([](auto&&... arguments) { at::_fused_adam_(arguments...); });
      }
    };
    if (call.recorded) {
      kernel(call.numbers->rate);
    } else {
      kernel(call.rate_of(options.lr()));
    }
  }

  void count(Call& call) {
    for (auto* state : call.states) state->step(state->step() + 1);
  }
  void uncount(const std::vector<at::Tensor>& parameters) {
    for (const auto& parameter : parameters) {
      const auto found = this->optimizer_.state().find(parameter.unsafeGetTensorImpl());
      if (found == this->optimizer_.state().end()) continue;
      auto& state = static_cast<State&>(*found->second);
      state.step(state.step() - 1);
    }
  }

  /// A state that is made in a recording would be made anew at every replay.
  void refuse_to_begin() {
    for (const auto& group : this->optimizer_.param_groups()) {
      for (const auto& parameter : group.params()) {
        if (parameter.grad().defined() && this->optimizer_.state().count(parameter.unsafeGetTensorImpl()) == 0)
          throw NotRecordable("the optimizer meets a parameter for the first time");
      }
    }
  }
  void prepare_recording(Call& call) {
    call.share_counts();
    call.recorded_options = options_of(*call.group);
  }
  bool still_fits(const Call& call) const {
    Options options = options_of(*call.group);
    options.lr(call.recorded_options->lr());
    if (!(options == *call.recorded_options)) return false;
    for (size_t i = 0; i < call.parameters.size(); ++i) {
      const auto found = this->optimizer_.state().find(call.parameters[i].unsafeGetTensorImpl());
      if (found == this->optimizer_.state().end() || found->second.get() != call.states[i]) return false;
      if (!call.states[i]->exp_avg().is_same(call.exp_avgs[i]) || !call.states[i]->exp_avg_sq().is_same(call.exp_avg_sqs[i]))
        return false;
      if (!call.max_exp_avg_sqs.empty() && !call.states[i]->max_exp_avg_sq().is_same(call.max_exp_avg_sqs[i])) return false;
    }
    return call.shares_rightly();
  }
  void begin(Call& call) {
    call.tell_rate(options_of(*call.group).lr());
    call.tell_counts();
  }

 private:
  static const Options& options_of(const OptimizerParamGroup& group) { return static_cast<const Options&>(group.options()); }
  static bool fits(const at::Tensor& tensor, const at::Tensor& parameter) {
    return tensor.defined() && same_layout(tensor, parameter);
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
  std::vector<at::Tensor> momentum_buffers;
  std::optional<torch::optim::SGDOptions> recorded_options;

  void clear() {
    FusedCall::clear();
    momentum_buffers.clear();
  }
};

class FusedSgd : public FusedStep<FusedSgd, SgdCall> {
 public:
  using FusedStep::FusedStep;
  static constexpr auto kKernel = FusedKernel::sgd;

  bool add(const OptimizerParamGroup& group, const at::Tensor& parameter) {
    if (options_of(group).momentum() == 0) {
      call_for(group, parameter, [](const SgdCall&) { return true; }).add(parameter);
      return true;
    }
    at::Tensor buffer = buffer_of(parameter);
    const bool first = !buffer.defined();
    if (first) buffer = at::empty_like(parameter);
    if (!same_layout(buffer, parameter)) return false;
    SgdCall& call = call_for(group, parameter, [&](const SgdCall& candidate) { return candidate.begins == first; });
    call.begins = first;
    call.add(parameter);
    call.momentum_buffers.push_back(std::move(buffer));
    return true;
  }

  void make(SgdCall& call, const StepConditions& conditions) {
    if (!call.recorded) call.make_numbers(0);
    const auto& options = options_of(*call.group);
    const auto kernel = [&](const auto& rate) {
      at::_fused_sgd_(call.parameters, call.gradients, call.momentum_buffers, options.weight_decay(), options.momentum(), rate,
                      options.dampening(), options.nesterov(), /*maximize=*/false, call.begins, conditions.divisor,
                      conditions.found_inf);
    };
    if (call.recorded) {
      kernel(call.numbers->rate);
    } else {
      kernel(call.rate_of(options.lr()));
    }
    if (call.begins) remember(call);
  }

  void count(SgdCall&) {}
  void uncount(const std::vector<at::Tensor>&) {}

  void refuse_to_begin() {
    for (const auto& group : optimizer_.param_groups()) {
      for (const auto& parameter : group.params()) {
        if (parameter.grad().defined() && options_of(group).momentum() != 0 && !buffer_of(parameter).defined())
          throw NotRecordable("the optimizer meets a parameter for the first time");
      }
    }
  }
  void prepare_recording(SgdCall& call) {
    call.make_numbers(0);
    call.recorded_options = options_of(*call.group);
  }
  bool still_fits(const SgdCall& call) const {
    torch::optim::SGDOptions options = options_of(*call.group);
    options.lr(call.recorded_options->lr());
    if (!(options == *call.recorded_options)) return false;
    for (size_t i = 0; i < call.momentum_buffers.size(); ++i) {
      if (!buffer_of(call.parameters[i]).is_same(call.momentum_buffers[i])) return false;
    }
    return true;
  }
  void begin(SgdCall& call) { call.tell_rate(options_of(*call.group).lr()); }

 private:
  static const torch::optim::SGDOptions& options_of(const OptimizerParamGroup& group) {
    return static_cast<const torch::optim::SGDOptions&>(group.options());
  }

  /// Undefined where there is none yet.
  at::Tensor buffer_of(const at::Tensor& parameter) const {
    const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer_.state().end()) return {};
    return static_cast<const torch::optim::SGDParamState&>(*found->second).momentum_buffer();
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
  using namespace torch::optim;
  if (typeid(optimizer) == typeid(AdamW)) return std::make_unique<FusedAdam<AdamWOptions, AdamWParamState>>(optimizer, on_trial);
  if (typeid(optimizer) == typeid(Adam)) return std::make_unique<FusedAdam<AdamOptions, AdamParamState>>(optimizer, on_trial);
  if (typeid(optimizer) == typeid(SGD)) return std::make_unique<FusedSgd>(optimizer, on_trial);
  return std::make_unique<PlainStep>(optimizer);
}

}  // namespace accelerate::detail
