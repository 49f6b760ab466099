#pragma once

#include <ATen/core/TensorBody.h>

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace accelerate {

class Value;

/// An ordered dictionary of plain data by name: what a registered object saves, what a tracker is configured with.
class StateDict {
 public:
  using Item = std::pair<std::string, Value>;

  StateDict() = default;
  StateDict(std::initializer_list<Item> items);

  /// The value of `name`; UsageError that lists the names there are when it is absent.
  const Value& at(std::string_view name) const;
  Value& at(std::string_view name);
  /// The value of `name`, made empty when it is absent.
  Value& operator[](std::string_view name);
  bool contains(std::string_view name) const;
  size_t size() const;
  bool empty() const;
  std::vector<Item>::iterator begin();
  std::vector<Item>::iterator end();
  std::vector<Item>::const_iterator begin() const;
  std::vector<Item>::const_iterator end() const;
  bool operator==(const StateDict& other) const;

  /// Names that are numbers in Python's files, as those of an optimizer's parameters: text here, numbers in a file.
  void set_numbered(bool numbered) { numbered_ = numbered; }
  bool is_numbered() const { return numbered_; }

 private:
  std::vector<Item> items_;
  bool numbered_ = false;
};

/// Plain data of any shape: nothing, a truth value, a number, text, a tensor, or a list, tuple or dictionary of these.
/// What is sent between processes as an object, and what a checkpoint holds beside weights.
///
///   Value batch = StateDict{{"name", "train"}, {"sizes", Value::List{1, 2, 3}}};
///   batch["name"].get<std::string>();
class Value {
 public:
  using List = std::vector<Value>;
  /// A tuple is not a list: Python and files distinguish them.
  struct Tuple {
    Tuple() = default;
    Tuple(std::initializer_list<Value> values);
    explicit Tuple(List values);
    bool operator==(const Tuple& other) const;
    List items;
  };
  enum class Kind { none, boolean, integer, real, text, list, tuple, dict, tensor };

  Value() = default;
  Value(std::nullptr_t) {}
  // Constrained, so that a pointer is never a truth value and an integer never a real number.
  template <std::same_as<bool> T>
  Value(T truth) : data_(truth) {}
  template <std::integral T>
  requires(!std::same_as<T, bool> && !std::same_as<T, char>) Value(T number) : data_(static_cast<int64_t>(number)) {}
  template <std::floating_point T>
  Value(T number) : data_(static_cast<double>(number)) {}
  Value(const char* text) : data_(std::string(text)) {}
  Value(std::string text) : data_(std::move(text)) {}
  Value(std::string_view text) : data_(std::string(text)) {}
  Value(List list);
  Value(Tuple tuple);
  Value(StateDict dict);
  Value(at::Tensor tensor) : data_(std::move(tensor)) {}

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is_none() const { return kind() == Kind::none; }

  /// The content as T: bool, an integer or floating-point type, std::string, List, Tuple, StateDict or at::Tensor.
  /// An integer is also given as a real number; any other mismatch, also of range, is a UsageError that says what is there.
  template <class T>
  T get() const {
    if constexpr (std::same_as<T, bool> || std::same_as<T, std::string> || std::same_as<T, List> || std::same_as<T, Tuple> ||
                  std::same_as<T, StateDict> || std::same_as<T, at::Tensor>) {
      return as<T>();
    } else if constexpr (std::integral<T>) {
      const int64_t number = as<int64_t>();
      if (static_cast<int64_t>(static_cast<T>(number)) != number || (std::unsigned_integral<T> && number < 0))
        throw_out_of_range(number);
      return static_cast<T>(number);
    } else {
      static_assert(std::floating_point<T>, "a Value holds bool, numbers, text, lists, tuples, dictionaries and tensors");
      return static_cast<T>(real());
    }
  }

  /// The content itself, to read or change in place. UsageError when it is of another kind.
  template <class T>
  const T& as() const;
  template <class T>
  T& as() {
    return const_cast<T&>(std::as_const(*this).as<T>());
  }

  /// The entry of a dictionary.
  const Value& operator[](std::string_view name) const { return as<StateDict>().at(name); }

  /// Equal kinds and contents; tensors are equal when dtype, shape and every element are.
  bool operator==(const Value& other) const;

  /// As Python would print it, tensors as tensor(dtype[shape]).
  friend std::string to_string(const Value& value);

 private:
  double real() const;
  [[noreturn]] static void throw_out_of_range(int64_t number);

  // In the order of Kind.
  std::variant<std::monostate, bool, int64_t, double, std::string, List, Tuple, StateDict, at::Tensor> data_;
};

const char* to_string(Value::Kind kind);

}  // namespace accelerate
