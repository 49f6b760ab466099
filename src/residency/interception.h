#pragma once

#include <ATen/core/TensorBody.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKey.h>

#include <functional>

namespace accelerate::detail {

/// A key of LibTorch's dispatcher that LibTorch itself leaves unused. On a tensor, or included for a thread, it brings operators
/// to us first. It lies above autograd and autocast: composite operators are seen whole.
constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;
/// What is left of a dispatch after us.
inline c10::DispatchKeySet after_us(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
}

/// Registers our fallback for the key, once a process. UsageError when somebody else uses the key.
void intercept_operators();

/// Runs an operator whose arguments may be managed weights: pages in those that it needs, and pins them while it runs.
void run_on_weights(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// Puts the key on a tensor, or takes it off. Views made of it later inherit it.
void set_key(const at::TensorBase& tensor, bool on);
bool has_key(const at::TensorBase& tensor);

/// Calls `visit` with every tensor that a value is or has in a list.
template <class Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isList()) {
    const auto elements = value.toListRef();
    if (elements.empty() || !(elements[0].isTensor() || elements[0].isNone())) return;
    for (const c10::IValue& each : elements) visit_tensors(each, visit);
  }
}

/// The value with `map(tensor)` substituted for every defined tensor.
c10::IValue map_tensors(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& map);

}  // namespace accelerate::detail
