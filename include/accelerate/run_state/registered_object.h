#pragma once

#include <accelerate/checkpoint/stateful.h>

#include <functional>
#include <memory>

namespace accelerate {

/// An object of the user's that is saved and loaded with a run.
struct RegisteredObject {
  std::function<StateDict()> state_dict;
  std::function<void(const StateDict&)> load_state_dict;
};

namespace detail {

/// `object` must outlive what it is registered with.
template <Stateful T>
RegisteredObject registered(T& object) {
  return {[&object] { return StateDict(std::as_const(object).state_dict()); },
          [&object](const StateDict& state) { object.load_state_dict(state); }};
}
template <Stateful T>
RegisteredObject registered(const std::shared_ptr<T>& object) {
  return {[object] { return StateDict(std::as_const(*object).state_dict()); },
          [object](const StateDict& state) { object->load_state_dict(state); }};
}

}  // namespace detail
}  // namespace accelerate
