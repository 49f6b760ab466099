#pragma once

#include <ATen/core/TensorBody.h>
#include <accelerate/distributed/nested.h>
#include <c10/util/ArrayRef.h>

#include <concepts>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

/// A call that is made now and can be made again in the backward pass.
namespace accelerate::detail {

/// A function and its inputs, independent of their types.
class RepeatableCall {
 public:
  virtual ~RepeatableCall() = default;
  /// Takes the tensors out of the inputs, in order. The inputs are kept without them.
  virtual std::vector<at::Tensor> take_tensors() = 0;
  /// Calls the function with a copy of the inputs that has these tensors. What it returns is dropped.
  virtual void repeat(const std::vector<at::Tensor>& tensors) = 0;
  /// Its name in messages: "The function that accelerate::checkpoint was given at train.cpp:41".
  virtual std::string name() const = 0;
};

std::string name_of_call(const std::source_location& where);

/// What a prepared model has, and nothing else.
template <class F>
concept PreparedModelLike = requires(F& function) {
  function.core();
  function.no_sync();
};

/// Calls a function, a holder, a pointer to a module, or a module.
template <class F, class... Inputs>
decltype(auto) call_function(F& function, Inputs&&... inputs) {
  if constexpr (requires { typename std::remove_cv_t<F>::ContainedType; }) {
    return function.ptr()->forward(std::forward<Inputs>(inputs)...);
  } else if constexpr (std::is_invocable_v<F&, Inputs...>) {
    return std::invoke(function, std::forward<Inputs>(inputs)...);
  } else if constexpr (requires { function->forward(std::forward<Inputs>(inputs)...); }) {
    return function->forward(std::forward<Inputs>(inputs)...);
  } else {
    return function.forward(std::forward<Inputs>(inputs)...);
  }
}

/// The function as it is kept for later: a module by pointer, which owns it where somebody's does; all else as a copy.
template <class F>
auto kept_function(F& function) {
  using Type = std::remove_cv_t<F>;
  static_assert(!PreparedModelLike<Type>,
                "a prepared model is not checkpointed as a whole: call accelerate::checkpoint on blocks inside of its forward");
  if constexpr (std::derived_from<Type, torch::nn::Module>) {
    return std::shared_ptr<F>(function.weak_from_this().lock(), &function);
  } else {
    static_assert(std::is_copy_constructible_v<Type>, "a function that is called again in the backward pass must be copyable");
    return Type(function);
  }
}

/// A copy of an input; of a list that does not own its elements, of these too.
template <class T>
std::decay_t<const T&> kept_input(const T& input) {
  return input;
}
template <class T>
std::vector<T> kept_input(const c10::ArrayRef<T>& input) {
  return input.vec();
}

/// Finds the tensors in an input. A class that cannot be decomposed keeps its own.
template <class T>
void find_tensors(T& input, Leaves& leaves) {
  if constexpr (PlainStruct<T>) {
    if constexpr (!HasBaseClass<T> && Searchable<T>) collect(input, leaves);
  } else if constexpr (Nested<T> && !is_opaque<T>()) {
    collect(input, leaves);
  }
}

/// A kept input with the constness and the value category of the given one.
template <class Given, class Kept>
decltype(auto) as_given(Kept& kept) {
  if constexpr (!std::is_lvalue_reference_v<Given>) {
    return std::move(kept);
  } else if constexpr (std::is_const_v<std::remove_reference_t<Given>>) {
    return std::as_const(kept);
  } else {
    return (kept);
  }
}

template <class Function, class... Given>
class FunctionCall final : public RepeatableCall {
 public:
  FunctionCall(std::source_location where, Function function, const std::remove_reference_t<Given>&... inputs)
      : where_(where), function_(std::move(function)), inputs_(kept_input(inputs)...) {}

  std::vector<at::Tensor> take_tensors() override {
    std::vector<at::Tensor> tensors;
    for (at::Tensor* tensor : tensors_of(inputs_)) tensors.push_back(std::exchange(*tensor, at::Tensor()));
    return tensors;
  }

  void repeat(const std::vector<at::Tensor>& tensors) override {
    Inputs inputs = inputs_;
    const auto places = tensors_of(inputs);
    for (size_t i = 0; i < places.size(); ++i) *places[i] = tensors[i];
    std::apply([this](auto&... kept) { static_cast<void>(call_function(function_, as_given<Given>(kept)...)); }, inputs);
  }

  std::string name() const override { return name_of_call(where_); }

 private:
  using Inputs = std::tuple<decltype(kept_input(std::declval<const std::remove_reference_t<Given>&>()))...>;

  static std::vector<at::Tensor*> tensors_of(Inputs& inputs) {
    Leaves leaves;
    std::apply([&](auto&... input) { (find_tensors(input, leaves), ...); }, inputs);
    return std::move(leaves.tensors);
  }

  std::source_location where_;
  Function function_;
  Inputs inputs_;
};

}  // namespace accelerate::detail
