#pragma once

#include <accelerate/distributed/value.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate {

/// Visits the variables of an object by name, so that one list of them serves to write its state and to read it.
class StateFields {
 public:
  /// Collects a state.
  StateFields() = default;
  /// Reads from `state`, which must outlive this. Nothing changes before `commit`, so that a state that does not fit leaves
  /// the object as it was. A name that is absent leaves its variable alone, and names that nobody asks for are ignored.
  explicit StateFields(const StateDict& state) : source_(&state) {}
  /// The same, of a state that will not be used again: a tensor that nothing else refers to, and that fits as it is, is kept
  /// instead of copied.
  explicit StateFields(StateDict&& state) : source_(&state), keeps_tensors_(true) {}

  // A value of another kind is a UsageError that names it.
  void operator()(std::string_view name, bool& variable);
  void operator()(std::string_view name, int64_t& variable);
  void operator()(std::string_view name, double& variable);
  void operator()(std::string_view name, std::string& variable);
  void operator()(std::string_view name, std::vector<int64_t>& variable);
  void operator()(std::string_view name, std::vector<double>& variable);
  /// An undefined tensor is absent from the state. What is read is copied to the device of `like`, and to its dtype where
  /// both are floating-point numbers.
  void operator()(std::string_view name, at::Tensor& variable, const at::Tensor& like);
  /// Any other variable: `write` gives it as a value, `read` takes a value apart and returns what sets the variable to it.
  void operator()(std::string_view name, const std::function<Value()>& write,
                  const std::function<std::function<void()>(const Value&)>& read);
  /// What others expect to find in the file, and nobody needs to read.
  void constant(std::string_view name, Value value);

  /// Whether a state is read, not collected.
  bool reads() const { return source_ != nullptr; }
  /// The state that was collected.
  StateDict take() { return std::move(written_); }
  /// Sets the variables to what was read.
  void commit();

 private:
  template <class T>
  void plain(std::string_view name, T& variable);

  const StateDict* source_ = nullptr;
  bool keeps_tensors_ = false;
  StateDict written_;
  std::vector<std::function<void()>> commits_;
};

}  // namespace accelerate
