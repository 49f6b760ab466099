#include "distributed/wire.h"

#include <ATen/ops/empty.h>
#include <accelerate/core/error.h>

#include <cstring>

#include "distributed/plain_tensor.h"

namespace accelerate::detail {
namespace {

/// Deeper data is not what anybody sends on purpose, and decoding must not run out of stack.
constexpr int kMostLevels = 200;

template <class T>
void put(std::string& bytes, T number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void put_text(std::string& bytes, std::string_view text) {
  put<uint64_t>(bytes, text.size());
  bytes += text;
}

void put_value(std::string& bytes, const Value& value, int level);

void put_list(std::string& bytes, const Value::List& items, int level) {
  put<uint64_t>(bytes, items.size());
  for (const auto& item : items) put_value(bytes, item, level + 1);
}

void put_tensor(std::string& bytes, const at::Tensor& tensor) {
  put<uint8_t>(bytes, tensor.defined());
  if (!tensor.defined()) return;
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta()) {
    throw UsageError(
        "Only dense tensors can be sent as objects; this one is sparse, quantized or on the meta device. Send its parts.");
  }
  const at::Tensor elements = plain(tensor.cpu());
  put<int8_t>(bytes, static_cast<int8_t>(elements.scalar_type()));
  put<uint8_t>(bytes, tensor.requires_grad());
  put<uint64_t>(bytes, static_cast<uint64_t>(elements.dim()));
  for (const int64_t size : elements.sizes()) put<int64_t>(bytes, size);
  put_text(bytes, {static_cast<const char*>(elements.const_data_ptr()), elements.nbytes()});
}

void put_value(std::string& bytes, const Value& value, int level) {
  if (level > kMostLevels) throw UsageError("An object nested deeper than 200 levels cannot be sent: does it contain itself?");
  put<uint8_t>(bytes, static_cast<uint8_t>(value.kind()));
  switch (value.kind()) {
    case Value::Kind::none:
      break;
    case Value::Kind::boolean:
      put<uint8_t>(bytes, value.as<bool>());
      break;
    case Value::Kind::integer:
      put(bytes, value.as<int64_t>());
      break;
    case Value::Kind::real:
      put(bytes, value.as<double>());
      break;
    case Value::Kind::text:
      put_text(bytes, value.as<std::string>());
      break;
    case Value::Kind::list:
      put_list(bytes, value.as<Value::List>(), level);
      break;
    case Value::Kind::tuple:
      put_list(bytes, value.as<Value::Tuple>().items, level);
      break;
    case Value::Kind::dict:
      put<uint64_t>(bytes, value.as<StateDict>().size());
      for (const auto& [name, item] : value.as<StateDict>()) {
        put_text(bytes, name);
        put_value(bytes, item, level + 1);
      }
      break;
    case Value::Kind::tensor:
      put_tensor(bytes, value.as<at::Tensor>());
      break;
  }
}

/// Reads what put_* wrote, and never past the end of what arrived.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  bool at_end() const { return bytes_.empty(); }

  template <class T>
  T number() {
    T value;
    const auto raw = take(sizeof(T));
    std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }

  std::string_view text() { return take(number<uint64_t>()); }

  Value value(int level) {
    if (level > kMostLevels) broken();
    switch (static_cast<Value::Kind>(number<uint8_t>())) {
      case Value::Kind::none:
        return {};
      case Value::Kind::boolean:
        return number<uint8_t>() != 0;
      case Value::Kind::integer:
        return number<int64_t>();
      case Value::Kind::real:
        return number<double>();
      case Value::Kind::text:
        return std::string(text());
      case Value::Kind::list:
        return list(level);
      case Value::Kind::tuple:
        return Value::Tuple(list(level));
      case Value::Kind::dict:
        return dict(level);
      case Value::Kind::tensor:
        return tensor();
    }
    broken();
  }

 private:
  [[noreturn]] static void broken() {
    throw DistributedError("A received object is corrupt: do all ranks run the same version of this program?");
  }

  std::string_view take(uint64_t size) {
    if (size > bytes_.size()) broken();
    const auto taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  Value::List list(int level) {
    const auto size = number<uint64_t>();
    if (size > bytes_.size()) broken();  // every item takes a byte at least
    Value::List items;
    items.reserve(size);
    for (uint64_t i = 0; i < size; ++i) items.push_back(value(level + 1));
    return items;
  }

  StateDict dict(int level) {
    StateDict items;
    for (auto left = number<uint64_t>(); left > 0; --left) {
      const std::string name(text());
      items[name] = value(level + 1);
    }
    return items;
  }

  at::Tensor tensor() {
    if (number<uint8_t>() == 0) return {};
    const auto dtype = number<int8_t>();
    if (dtype < 0 || dtype >= static_cast<int8_t>(at::ScalarType::NumOptions)) broken();
    const bool requires_grad = number<uint8_t>() != 0;
    const auto dims = number<uint64_t>();
    if (dims > bytes_.size()) broken();
    std::vector<int64_t> sizes(dims);
    for (auto& size : sizes) {
      size = number<int64_t>();
      if (size < 0) broken();
    }
    const auto data = text();
    auto tensor = at::empty({static_cast<int64_t>(data.size())}, at::TensorOptions().dtype(at::kByte));
    if (!data.empty()) std::memcpy(tensor.data_ptr(), data.data(), data.size());
    const auto type = static_cast<at::ScalarType>(dtype);
    int64_t bytes = static_cast<int64_t>(c10::elementSize(type));
    for (const int64_t size : sizes) {
      if (__builtin_mul_overflow(bytes, size, &bytes)) broken();
    }
    if (bytes != static_cast<int64_t>(data.size())) broken();
    // An empty tensor has no bytes to look at in another way.
    tensor = bytes == 0 ? at::empty(sizes, at::TensorOptions().dtype(type)) : tensor.view(type).view(sizes);
    return tensor.set_requires_grad(requires_grad);
  }

  std::string_view bytes_;
};

}  // namespace

std::string encode(const Value& value) {
  std::string bytes;
  put_value(bytes, value, 0);
  return bytes;
}

Value decode(std::string_view bytes) {
  Reader reader(bytes);
  Value value = reader.value(0);
  if (!reader.at_end())
    throw DistributedError("A received object has trailing bytes: do all ranks run the same version of this program?");
  return value;
}

}  // namespace accelerate::detail
