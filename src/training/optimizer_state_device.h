#pragma once

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// Moves what an optimizer of LibTorch remembers of each parameter to where that parameter is: its device, or a file beside its
/// own. Optimizers of others know their own state.
void place_state(torch::optim::Optimizer& optimizer);

}  // namespace accelerate::detail
