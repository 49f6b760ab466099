#pragma once

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// Moves what an optimizer of LibTorch remembers of each parameter to the device of that parameter. Optimizers of others know
/// their own state.
void place_state(torch::optim::Optimizer& optimizer);

}  // namespace accelerate::detail
