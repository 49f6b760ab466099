#pragma once

#include <memory>

namespace accelerate {

/// While it lives, what operators of this thread save for their backward passes is moved to host memory (pinned, for an
/// accelerator) and moved back when the backward pass needs it. Parameters and their views stay where they are, offloaded and
/// sharded ones too, as do tensors that are on a CPU. Gradients are the same to the bit. It ends where the forward pass does; the
/// backward pass may be made outside. Scopes end in the reverse of the order in which they began.
class [[nodiscard]] SaveOnCpuScope {
 public:
  /// UsageError when another library has replaced autograd's engine.
  SaveOnCpuScope();
  ~SaveOnCpuScope();
  SaveOnCpuScope(const SaveOnCpuScope&) = delete;
  SaveOnCpuScope& operator=(const SaveOnCpuScope&) = delete;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

inline SaveOnCpuScope save_on_cpu() { return SaveOnCpuScope(); }

}  // namespace accelerate
