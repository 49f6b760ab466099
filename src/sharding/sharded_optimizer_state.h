#pragma once

#include <accelerate/distributed/value.h>

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

class ShardedModel;

/// The state of an optimizer as a run that is not sharded has it, of which tensors are replaced by this rank's parts of them.
/// `optimizer` numbers its parameters as `state` does, be they parameters of the model or their pieces.
StateDict shard_optimizer_state(const ShardedModel& model, const torch::optim::Optimizer& optimizer, StateDict state);

/// The reverse: this rank's state with its parts gathered to whole tensors, in host memory, where `keeps`. All ranks call it.
StateDict gather_optimizer_state(const ShardedModel& model, const torch::optim::Optimizer& optimizer, StateDict state,
                                 bool keeps);

}  // namespace accelerate::detail
