#pragma once

#include <accelerate/activations/repeatable_call.h>

/// Activation checkpointing: a forward pass keeps the inputs of a region instead of all that its operators save, and the backward
/// pass runs the region again. Memory for time.
namespace accelerate {

/// How a region is checkpointed.
struct CheckpointOptions {
  /// Restore the random numbers of all devices for the rerun, so that dropout draws the same mask.
  bool preserve_rng_state = true;
  /// Keep the inputs of the region in host memory until the backward pass (pinned, for an accelerator).
  bool offload = false;
  /// Where errors say that it was called.
  std::source_location where = std::source_location::current();
};

namespace detail {

/// Whether operators of this thread record a graph.
bool records_graph();

/// The forward pass of a checkpointed call: while it lives, what operators of this thread save is forgotten, to be computed
/// again. UsageError when another library has replaced autograd's engine.
class CheckpointedForward {
 public:
  CheckpointedForward(std::unique_ptr<RepeatableCall> call, const CheckpointOptions& options);
  ~CheckpointedForward();
  CheckpointedForward(const CheckpointedForward&) = delete;
  CheckpointedForward& operator=(const CheckpointedForward&) = delete;
  /// The function has returned. UsageError when it has changed an input in place.
  void finish();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

template <class F, class... Inputs>
decltype(auto) run_checkpointed(const CheckpointOptions& options, F& function, Inputs&&... inputs) {
  constexpr bool copyable = (std::is_copy_constructible_v<std::decay_t<Inputs>> && ...);
  static_assert(copyable,
                "an input of a checkpointed function must be copyable: the function is called again in the backward pass");
  if constexpr (!copyable) {
    return call_function(function, std::forward<Inputs>(inputs)...);  // one mistake, one answer
  } else {
    if (!records_graph()) return call_function(function, std::forward<Inputs>(inputs)...);
    using Call = FunctionCall<decltype(kept_function(function)), Inputs...>;
    CheckpointedForward forward(std::make_unique<Call>(options.where, kept_function(function), inputs...), options);
    if constexpr (std::is_void_v<decltype(call_function(function, std::forward<Inputs>(inputs)...))>) {
      call_function(function, std::forward<Inputs>(inputs)...);
      forward.finish();
    } else {
      decltype(auto) result = call_function(function, std::forward<Inputs>(inputs)...);
      forward.finish();
      return result;
    }
  }
}

template <class T>
concept GivenToCheckpoint =
    !std::same_as<std::remove_cvref_t<T>, CheckpointOptions> && !std::same_as<std::remove_cvref_t<T>, std::source_location>;

}  // namespace detail

/// Calls `function` with the inputs and returns what it returns. Autograd keeps the inputs alone: what operators inside save for
/// their backward passes is computed again when the backward pass comes there, a region at a time. Gradients are the same to the
/// bit.
///
///   x = accelerate::checkpoint(block, x, mask);
///
/// `function` is a holder, a std::shared_ptr to a module, a module, or anything that can be called. It is copied (a module is
/// not), as the inputs are: what it captures by reference must live until the backward pass. Tensors in vectors, tuples, maps
/// and plain structs are found. The rerun ends where the last tensor that is needed has been saved; an exception in it comes out
/// of the backward pass. UsageError, there, when the rerun saves other tensors than the forward pass did. Where no graph is
/// recorded (NoGradGuard, InferenceMode) the function is just called.
template <detail::GivenToCheckpoint F>
decltype(auto) checkpoint(F&& function, std::source_location where = std::source_location::current()) {
  return detail::run_checkpointed({.where = where}, function);
}
template <detail::GivenToCheckpoint F, detail::GivenToCheckpoint A>
decltype(auto) checkpoint(F&& function, A&& a, std::source_location where = std::source_location::current()) {
  return detail::run_checkpointed({.where = where}, function, std::forward<A>(a));
}
template <detail::GivenToCheckpoint F, detail::GivenToCheckpoint A, detail::GivenToCheckpoint B>
decltype(auto) checkpoint(F&& function, A&& a, B&& b, std::source_location where = std::source_location::current()) {
  return detail::run_checkpointed({.where = where}, function, std::forward<A>(a), std::forward<B>(b));
}
template <detail::GivenToCheckpoint F, detail::GivenToCheckpoint A, detail::GivenToCheckpoint B, detail::GivenToCheckpoint C>
decltype(auto) checkpoint(F&& function, A&& a, B&& b, C&& c, std::source_location where = std::source_location::current()) {
  return detail::run_checkpointed({.where = where}, function, std::forward<A>(a), std::forward<B>(b), std::forward<C>(c));
}
/// Four inputs and more: std::source_location cannot follow a parameter pack, so errors do not name the line. With options they
/// do.
template <detail::GivenToCheckpoint F, detail::GivenToCheckpoint... Inputs>
requires(sizeof...(Inputs) > 3) decltype(auto) checkpoint(F&& function, Inputs&&... inputs) {
  return detail::run_checkpointed({.where = {}}, function, std::forward<Inputs>(inputs)...);
}
/// With options: `checkpoint({.offload = true}, block, x)`.
template <detail::GivenToCheckpoint F, detail::GivenToCheckpoint... Inputs>
decltype(auto) checkpoint(const CheckpointOptions& options, F&& function, Inputs&&... inputs) {
  return detail::run_checkpointed(options, function, std::forward<Inputs>(inputs)...);
}

}  // namespace accelerate
