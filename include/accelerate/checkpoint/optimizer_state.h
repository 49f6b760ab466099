#pragma once

#include <accelerate/distributed/value.h>

namespace torch::optim {
class Optimizer;
}

namespace accelerate {

/// The state of an optimizer under the names that Python's optimizer of the same name gives it, so that each continues what the
/// other began: "state" by the number of the parameter, and "param_groups". Its tensors share their memory with the optimizer.
/// For Adagrad, Adam, AdamW, LBFGS, RMSprop, SGD and what is derived from them; UsageError for any other.
StateDict state_dict(const torch::optim::Optimizer& optimizer);

/// Continues from such a state: options of the groups and, copied to where the parameters are, the state of each of them.
/// UsageError, with nothing changed, when it has other groups or asks for what LibTorch's optimizer cannot do.
void load_state_dict(torch::optim::Optimizer& optimizer, const StateDict& state);
/// The same with a state that will not be used again: the optimizer keeps those of its tensors that nothing else refers to,
/// where they are what it needs.
void load_state_dict(torch::optim::Optimizer& optimizer, StateDict&& state);

}  // namespace accelerate
