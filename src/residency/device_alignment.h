#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

/// Models whose weights are on several devices. Their modules know nothing of it, so operators find their arguments on one.
namespace accelerate::detail {

/// While it lives, operators that this thread calls (and those threads that take over its state) move their tensors to one
/// device. Not inside a scope of empty weights.
class AlignmentScope {
 public:
  AlignmentScope();
  ~AlignmentScope();
  AlignmentScope(const AlignmentScope&) = delete;
  AlignmentScope& operator=(const AlignmentScope&) = delete;

  /// The innermost one of this thread, or null.
  static AlignmentScope* current();
  /// Where the last operator with a weight ran. What follows belongs there: a sum with what came from before a border, too.
  std::optional<c10::Device> device;

 private:
  AlignmentScope* outer_;
  c10::impl::IncludeDispatchKeyGuard included_;
};

/// Replaces tensors among the arguments of an operator that are on different devices by copies on one: that of an argument that
/// it changes, else of a weight, else of the last weight that was used, else of the first. Those of operators that are made for
/// several devices stay, as do numbers on the CPU. Says whether any was replaced; then the operator must be called again.
bool align_devices(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace accelerate::detail
