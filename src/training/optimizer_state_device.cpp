#include "training/optimizer_state_device.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <initializer_list>

#include "residency/host_memory.h"

namespace accelerate::detail {
namespace {

using namespace torch::optim;

void place_tensor(at::Tensor& tensor, const at::Tensor& parameter) {
  if (!tensor.defined()) return;
  tensor = tensor.to(parameter.device());
  keep_beside(tensor, parameter);
}

template <class State>
using TensorMember = at::Tensor& (State::*)() noexcept;

template <class State>
void place_members(OptimizerParamState& state, const at::Tensor& parameter, std::initializer_list<TensorMember<State>> members) {
  auto* typed = dynamic_cast<State*>(&state);
  if (!typed) return;
  for (const auto member : members) place_tensor((typed->*member)(), parameter);
}

/// It keeps one state for all its parameters, as that of the first.
void place_history(OptimizerParamState& state, const at::Tensor& parameter) {
  auto* history = dynamic_cast<LBFGSParamState*>(&state);
  if (!history) return;
  for (auto* tensor : {&history->d(), &history->H_diag(), &history->prev_flat_grad()}) place_tensor(*tensor, parameter);
  for (auto* tensors : {&history->old_dirs(), &history->old_stps(), &history->ro()}) {
    for (auto& tensor : *tensors) place_tensor(tensor, parameter);
  }
  if (!history->al()) return;
  for (auto& tensor : *history->al()) place_tensor(tensor, parameter);
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
      place_history(state, parameter);
    }
  }
}

}  // namespace accelerate::detail
