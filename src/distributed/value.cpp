#include <ATen/ops/equal.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/value.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "distributed/tensor_text.h"

namespace accelerate {

using namespace detail;
namespace {

// A template over both constnesses: one search, no second copy of it.
template <class Items>
auto find_item(Items& items, std::string_view name) {
  return std::find_if(items.begin(), items.end(), [&](const StateDict::Item& item) { return item.first == name; });
}

std::string joined(const Value::List& items, const char* open, const char* close) {
  std::string text = open;
  for (size_t i = 0; i < items.size(); ++i) text += (i ? ", " : "") + to_string(items[i]);
  return text + close;
}

std::string real_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  std::array<char, 32> buffer{};
  std::string text(buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), number).ptr);
  // 1.0 must not read as the integer 1.
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

}  // namespace

StateDict::StateDict(std::initializer_list<Item> items) {
  for (const auto& [name, value] : items) (*this)[name] = value;
}

const Value& StateDict::at(std::string_view name) const {
  const auto found = find_item(items_, name);
  if (found != items_.end()) return found->second;
  std::string names;
  for (const auto& item : items_) names += (names.empty() ? "" : ", ") + item.first;
  throw UsageError("The dictionary has no entry " + std::string(name) + "; it has " + (names.empty() ? "none" : names) + ".");
}

Value& StateDict::at(std::string_view name) { return const_cast<Value&>(std::as_const(*this).at(name)); }

Value& StateDict::operator[](std::string_view name) {
  const auto found = find_item(items_, name);
  if (found != items_.end()) return found->second;
  return items_.emplace_back(std::string(name), Value()).second;
}

bool StateDict::contains(std::string_view name) const { return find_item(items_, name) != items_.end(); }
size_t StateDict::size() const { return items_.size(); }
bool StateDict::empty() const { return items_.empty(); }
std::vector<StateDict::Item>::iterator StateDict::begin() { return items_.begin(); }
std::vector<StateDict::Item>::iterator StateDict::end() { return items_.end(); }
std::vector<StateDict::Item>::const_iterator StateDict::begin() const { return items_.begin(); }
std::vector<StateDict::Item>::const_iterator StateDict::end() const { return items_.end(); }
bool StateDict::operator==(const StateDict& other) const { return items_ == other.items_; }

Value::Tuple::Tuple(std::initializer_list<Value> values) : items(values) {}
Value::Tuple::Tuple(List values) : items(std::move(values)) {}
bool Value::Tuple::operator==(const Tuple& other) const { return items == other.items; }

Value::Value(List list) : data_(std::move(list)) {}
Value::Value(Tuple tuple) : data_(std::move(tuple)) {}
Value::Value(StateDict dict) : data_(std::move(dict)) {}

const char* to_string(Value::Kind kind) {
  static constexpr std::array kNames = {"none", "boolean", "integer", "real", "text", "list", "tuple", "dict", "tensor"};
  return kNames[static_cast<size_t>(kind)];
}

template <class T>
const T& Value::as() const {
  if (const T* content = std::get_if<T>(&data_)) return *content;
  const Value wanted{T{}};
  throw UsageError(std::string("Expected a value of kind ") + to_string(wanted.kind()) + ", but " + to_string(*this) +
                   " is of kind " + to_string(kind()) + ".");
}

template const bool& Value::as<bool>() const;
template const int64_t& Value::as<int64_t>() const;
template const double& Value::as<double>() const;
template const std::string& Value::as<std::string>() const;
template const Value::List& Value::as<Value::List>() const;
template const Value::Tuple& Value::as<Value::Tuple>() const;
template const StateDict& Value::as<StateDict>() const;
template const at::Tensor& Value::as<at::Tensor>() const;

void Value::throw_out_of_range(int64_t number) {
  throw UsageError("The integer " + std::to_string(number) + " does not fit the requested type. Use int64_t.");
}

double Value::real() const { return kind() == Kind::integer ? static_cast<double>(as<int64_t>()) : as<double>(); }

bool Value::operator==(const Value& other) const {
  if (kind() != other.kind()) return false;
  if (kind() != Kind::tensor) {
    return std::visit(
        [&](const auto& mine) {
          using T = std::decay_t<decltype(mine)>;
          if constexpr (std::same_as<T, at::Tensor>) {
            return false;
          } else {
            return mine == std::get<T>(other.data_);
          }
        },
        data_);
  }
  const auto& mine = as<at::Tensor>();
  const auto& theirs = other.as<at::Tensor>();
  if (!mine.defined() || !theirs.defined()) return mine.defined() == theirs.defined();
  return mine.scalar_type() == theirs.scalar_type() && mine.sizes() == theirs.sizes() && at::equal(mine, theirs);
}

std::string to_string(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::none:
      return "None";
    case Value::Kind::boolean:
      return value.as<bool>() ? "True" : "False";
    case Value::Kind::integer:
      return std::to_string(value.as<int64_t>());
    case Value::Kind::real:
      return real_text(value.as<double>());
    case Value::Kind::text:
      return "'" + value.as<std::string>() + "'";
    case Value::Kind::list:
      return joined(value.as<Value::List>(), "[", "]");
    case Value::Kind::tuple: {
      const auto& items = value.as<Value::Tuple>().items;
      return joined(items, "(", items.size() == 1 ? ",)" : ")");
    }
    case Value::Kind::dict: {
      std::string text = "{";
      for (const auto& [name, item] : value.as<StateDict>())
        text += (text.size() > 1 ? ", '" : "'") + name + "': " + to_string(item);
      return text + "}";
    }
    case Value::Kind::tensor:
      return "tensor(" + describe(value.as<at::Tensor>()) + ")";
  }
  return "";
}

}  // namespace accelerate
