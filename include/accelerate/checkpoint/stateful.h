#pragma once

#include <accelerate/distributed/value.h>

#include <concepts>

namespace accelerate {

/// What can be saved with a run: gives its state as plain data, and takes such data back.
template <class T>
concept Stateful = requires(T& object, const StateDict& state) {
  { std::as_const(object).state_dict() } -> std::convertible_to<StateDict>;
  object.load_state_dict(state);
};

}  // namespace accelerate
