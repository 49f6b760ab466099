#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace accelerate::detail {

using torch::autograd::SavedVariableHooks;

/// Decides how autograd keeps tensors for a backward pass.
class HookMaker {
 public:
  virtual ~HookMaker() = default;
  /// The hooks of one saved tensor.
  virtual std::unique_ptr<SavedVariableHooks> make_hooks() = 0;
};

/// While it lives, autograd keeps what operators of this thread save by the hooks of `maker`; of several scopes the innermost
/// counts. UsageError when autograd's engine, which is where such hooks come from, is not ours.
class HookScope {
 public:
  explicit HookScope(HookMaker& maker);
  ~HookScope();
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;

  /// The maker of the innermost scope of this thread, or null.
  static HookMaker* current();

 private:
  HookMaker* outer_;
};

}  // namespace accelerate::detail
