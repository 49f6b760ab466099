#pragma once

#include <memory>

namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// Something that ends with an optimizer of LibTorch, which itself tells nobody when it is destroyed. Null for an optimizer of
/// the user's own, of whose defaults we do not know the type.
std::shared_ptr<const void> lifetime_of(torch::optim::Optimizer& optimizer);

/// Whether another optimizer has taken its parameters and state. For one that `lifetime_of` knows.
bool is_moved_from(torch::optim::Optimizer& optimizer);

}  // namespace accelerate::detail
