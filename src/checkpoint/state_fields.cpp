#include <accelerate/checkpoint/state_fields.h>
#include <accelerate/core/error.h>

namespace accelerate {

namespace {

template <class T>
Value field_value(const T& variable) {
  return variable;
}

template <class T>
Value field_value(const std::vector<T>& variable) {
  return Value::List(variable.begin(), variable.end());
}

template <class T>
void parse_field(const Value& value, T& parsed) {
  parsed = value.get<T>();
}

template <class T>
void parse_field(const Value& value, std::vector<T>& parsed) {
  // Python's objects hold lists or tuples as their users gave them.
  const auto& items = value.kind() == Value::Kind::tuple ? value.as<Value::Tuple>().items : value.as<Value::List>();
  for (const auto& item : items) parsed.push_back(item.get<T>());
}

/// Whether this is the only one that refers to its memory, all of it.
bool is_sole_owner(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.has_storage() && tensor.storage().use_count() == 1 &&
         tensor.storage().nbytes() == tensor.nbytes();
}

}  // namespace

template <class T>
void StateFields::plain(std::string_view name, T& variable) {
  (*this)(
      name, [&] { return field_value(variable); },
      [&](const Value& value) {
        T parsed{};
        parse_field(value, parsed);
        return [&variable, parsed = std::move(parsed)] { variable = parsed; };
      });
}

void StateFields::operator()(std::string_view name, bool& variable) { plain(name, variable); }
void StateFields::operator()(std::string_view name, int64_t& variable) { plain(name, variable); }
void StateFields::operator()(std::string_view name, double& variable) { plain(name, variable); }
void StateFields::operator()(std::string_view name, std::string& variable) { plain(name, variable); }
void StateFields::operator()(std::string_view name, std::vector<int64_t>& variable) { plain(name, variable); }
void StateFields::operator()(std::string_view name, std::vector<double>& variable) { plain(name, variable); }

void StateFields::operator()(std::string_view name, at::Tensor& variable, const at::Tensor& like) {
  if (!source_ && !variable.defined()) return;
  (*this)(
      name, [&] { return Value(variable); },
      [&](const Value& value) -> std::function<void()> {
        if (value.is_none()) return [&variable] { variable = at::Tensor(); };
        const auto& read = value.as<at::Tensor>();
        const bool same_kind = read.is_floating_point() && like.is_floating_point();
        // A copy, unless nobody else has it: the object must not change with the dictionary that it was loaded from.
        const bool copies = !keeps_tensors_ || !is_sole_owner(read);
        auto own = read.to(like.device(), same_kind ? like.scalar_type() : read.scalar_type(), /*non_blocking=*/false, copies);
        return [&variable, own] { variable = own; };
      });
}

void StateFields::operator()(std::string_view name, const std::function<Value()>& write,
                             const std::function<std::function<void()>(const Value&)>& read) {
  if (!source_) {
    written_[name] = write();
  } else if (source_->contains(name)) {
    try {
      commits_.push_back(read(source_->at(name)));
    } catch (const UsageError& error) {
      throw UsageError("The state has an invalid \"" + std::string(name) + "\": " + error.what());
    }
  }
}

void StateFields::constant(std::string_view name, Value value) {
  if (!source_) written_[name] = std::move(value);
}

void StateFields::commit() {
  for (const auto& set : commits_) set();
  commits_.clear();
}

}  // namespace accelerate
