#pragma once

#include <accelerate/distributed/nested.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

/// Moves a model's arguments to where it computes, and results to where the arguments were.
namespace accelerate::detail {

/// Calls `visit(tensor, kept)` with every tensor in nested data. `kept`: it is under one of `keys` in a dictionary.
template <class T, class Visit>
void visit_nested(T& data, const std::vector<std::string>& keys, bool kept, const Visit& visit) {
  using Plain = std::remove_const_t<T>;
  const auto into_map = [&](auto& map) {
    for (auto& entry : map) {
      const bool skipped = TextLike<std::remove_cvref_t<decltype(entry.first)>> && !keys.empty() &&
                           std::find(keys.begin(), keys.end(), key_text(entry.first)) != keys.end();
      visit_nested(entry.second, keys, kept || skipped, visit);
    }
  };
  const auto into_list = [&](auto& list) {
    for (auto& item : list) visit_nested(item, keys, kept, visit);
  };
  if constexpr (std::is_same_v<Plain, at::Tensor>) {
    visit(data, kept);
  } else if constexpr (std::is_same_v<Plain, Value>) {
    if (data.kind() == Value::Kind::tensor) visit(data.template as<at::Tensor>(), kept);
    if (data.kind() == Value::Kind::list) into_list(data.template as<Value::List>());
    if (data.kind() == Value::Kind::tuple) into_list(data.template as<Value::Tuple>().items);
    if (data.kind() == Value::Kind::dict) into_map(data.template as<StateDict>());
  } else if constexpr (std::is_same_v<Plain, StateDict> || MapLike<T>) {
    into_map(data);
  } else if constexpr (SequenceLike<T> && !std::is_same_v<Plain, std::vector<bool>>) {
    into_list(data);
  } else if constexpr (TupleLike<Plain>) {
    std::apply([&](auto&... items) { (visit_nested(items, keys, kept, visit), ...); }, data);
  } else if constexpr (is_optional<Plain>::value) {
    if (data) visit_nested(*data, keys, kept, visit);
  } else if constexpr (Searchable<Plain>) {
    for_each_field(data, [&](auto& field) { visit_nested(field, keys, kept, visit); });
  }
}

/// What a function takes, as a std::tuple; there is no such type for one that is overloaded or a template.
template <class F>
struct ParametersOf;
template <class R, class C, class... P>
struct ParametersOf<R (C::*)(P...)> : std::type_identity<std::tuple<P...>> {};
template <class R, class C, class... P>
struct ParametersOf<R (C::*)(P...) const> : std::type_identity<std::tuple<P...>> {};
template <class R, class C, class... P>
struct ParametersOf<R (C::*)(P...) noexcept> : std::type_identity<std::tuple<P...>> {};
template <class R, class C, class... P>
struct ParametersOf<R (C::*)(P...) const noexcept> : std::type_identity<std::tuple<P...>> {};

template <class T>
constexpr bool is_changeable = std::is_lvalue_reference_v<T> && !std::is_const_v<std::remove_reference_t<T>>;

/// Whether argument `I` of a forward must be the caller's own object, since the forward may change it.
template <class M, size_t I, class Argument>
constexpr bool may_be_filled() {
  if constexpr (!is_changeable<Argument>) {
    return false;
  } else if constexpr (requires { typename ParametersOf<decltype(&M::forward)>::type; }) {
    return is_changeable<std::tuple_element_t<I, typename ParametersOf<decltype(&M::forward)>::type>>;
  } else {
    return !std::is_same_v<std::remove_cvref_t<Argument>, at::Tensor>;
  }
}

/// Moves the tensors of one call to a device, and back. Nothing is copied when they are there already.
class CallDevices {
 public:
  /// Without a device nothing is moved.
  CallDevices(std::optional<c10::Device> device, const std::vector<std::string>& skip_keys)
      : device_(device), skip_keys_(skip_keys) {}

  template <class T>
  void look_at(const T& argument) {
    visit_nested(argument, skip_keys_, false, [&](const at::Tensor& tensor, bool kept) {
      if (!tensor.defined()) return;
      if (!from_) from_ = tensor.device();
      moves_ |= !kept && device_ && differs(tensor, *device_);
    });
  }
  /// Is any argument elsewhere?
  bool moves() const { return moves_; }

  template <class T>
  T brought(T argument) const {
    move_to(argument, *device_);
    return argument;
  }
  /// Moves a result to where the first tensor of the arguments was.
  template <class T>
  void bring_back(T& result) const {
    if constexpr (Searchable<T>) {
      if (from_) move_to(result, *from_);
    }
  }

 private:
  /// One without elements stays where it is: there is nothing to copy.
  static bool differs(const at::Tensor& tensor, c10::Device device) { return tensor.device() != device && !tensor.is_meta(); }
  static void move(at::Tensor& tensor, c10::Device device);

  template <class T>
  void move_to(T& data, c10::Device device) const {
    visit_nested(data, skip_keys_, false, [&]<class Found>(Found& tensor, bool kept) {
      if constexpr (!std::is_const_v<Found>) {
        if (!kept && tensor.defined() && differs(tensor, device)) move(tensor, device);
      }
    });
  }

  std::optional<c10::Device> device_;
  const std::vector<std::string>& skip_keys_;
  std::optional<c10::Device> from_;
  bool moves_ = false;
};

/// Whether argument `I` may be replaced by a copy of it with other tensors.
template <class M, size_t I, class Argument>
constexpr bool may_be_moved() {
  using T = std::remove_cvref_t<Argument>;
  return Searchable<T> && std::is_constructible_v<T, Argument> && !may_be_filled<M, I, Argument>();
}

template <class M, size_t I, class Argument>
void look_at_argument(CallDevices& devices, const std::remove_reference_t<Argument>& argument) {
  if constexpr (may_be_moved<M, I, Argument>()) devices.look_at(argument);
}

/// Argument `I` as it is passed on: a copy on the device, or itself.
template <class M, size_t I, class Argument>
decltype(auto) argument_for(const CallDevices& devices, Argument&& argument) {
  using T = std::remove_cvref_t<Argument>;
  if constexpr (!may_be_moved<M, I, Argument>()) {
    return std::forward<Argument>(argument);
  } else if constexpr (std::is_same_v<T, c10::ArrayRef<at::Tensor>>) {
    return devices.brought(argument.vec());
  } else {
    return devices.brought(T(std::forward<Argument>(argument)));
  }
}

/// Calls a module's forward with arguments on `device`; `back`: what it returns comes to where the arguments were. An argument
/// that forward may change (it takes a reference to non-const) is left as it is.
template <class M, class... Arguments>
auto call_on_device(M& module, std::optional<c10::Device> device, const std::vector<std::string>& skip_keys, bool back,
                    Arguments&&... arguments) {
  return [&]<size_t... I>(std::index_sequence<I...>) {
    CallDevices devices(device, skip_keys);
    (look_at_argument<M, I, Arguments>(devices, arguments), ...);
    const auto call = [&] {
      if (!devices.moves()) return module.forward(std::forward<Arguments>(arguments)...);
      return module.forward(argument_for<M, I, Arguments>(devices, std::forward<Arguments>(arguments))...);
    };
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
    } else {
      auto result = call();
      if (back) devices.bring_back(result);
      return result;
    }
  }
  (std::index_sequence_for<Arguments...>());
}

}  // namespace accelerate::detail
