#include "training/optimizer_state.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <initializer_list>

namespace accelerate::detail {
namespace {

using namespace torch::optim;

template <class State>
using TensorMember = at::Tensor& (State::*)() noexcept;

template <class State>
void place_members(OptimizerParamState& state, const at::Tensor& parameter, std::initializer_list<TensorMember<State>> members) {
  auto* typed = dynamic_cast<State*>(&state);
  if (!typed) return;
  for (const auto member : members) {
    auto& tensor = (typed->*member)();
    if (tensor.defined()) tensor = tensor.to(parameter.device());
  }
}

}  // namespace

void place_state(Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      auto& state = *found->second;
      using W = AdamWParamState;
      using A = AdamParamState;
      using R = RMSpropParamState;
      place_members<W>(state, parameter, {&W::exp_avg, &W::exp_avg_sq, &W::max_exp_avg_sq});
      place_members<A>(state, parameter, {&A::exp_avg, &A::exp_avg_sq, &A::max_exp_avg_sq});
      place_members<R>(state, parameter, {&R::square_avg, &R::momentum_buffer, &R::grad_avg});
      place_members<SGDParamState>(state, parameter, {&SGDParamState::momentum_buffer});
      place_members<AdagradParamState>(state, parameter, {&AdagradParamState::sum});
    }
  }
}

}  // namespace accelerate::detail
