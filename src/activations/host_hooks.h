#pragma once

#include <memory>

#include "activations/saved_tensor_hooks.h"

namespace accelerate::detail {

/// Moves saved tensors to host memory, and back to their device when they are needed.
class HostHookMaker final : public HookMaker {
 public:
  std::unique_ptr<SavedVariableHooks> make_hooks() override;
};

}  // namespace accelerate::detail
