#include "checkpoint/value_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <accelerate/core/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "checkpoint/dtypes.h"
#include "core/escaped.h"
#include "distributed/plain_tensor.h"
#include "distributed/tensor_text.h"

namespace accelerate::detail {
namespace {

/// All bytes of the tensor's storage.
at::Tensor storage_bytes(const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  if (is_offloaded(tensor)) return plain(tensor.as_strided({bytes / tensor.element_size()}, {1}, 0)).view(at::kByte);
  return at::empty({0}, tensor.options().dtype(at::kByte)).set_(tensor.storage(), 0, {bytes}, {1});
}

/// The bytes of a storage of a file: where they lie, if they are in memory, else read. Torch's own memory begins at multiples of
/// 64, as storages do in a file, and what is computed must not depend on where the bytes came from.
at::Tensor read_storage(const TorchFile& file, const TorchStorage& storage) {
  const auto size = static_cast<int64_t>(storage.size);
  const auto memory = file.source().memory();
  char* const place = memory ? memory.get() + storage.offset : nullptr;
  if (!memory || reinterpret_cast<uintptr_t>(place) % 64 != 0) {
    at::Tensor bytes = at::empty({size}, at::kByte);
    file.read(storage, bytes.mutable_data_ptr());
    return bytes;
  }
  file.require_sound(storage, place);
  return at::from_blob(
      place, {size}, [memory](void*) {}, at::kByte);
}

int64_t number_of(const std::string& name) {
  int64_t number = 0;
  const auto [end, problem] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (problem != std::errc() || end != name.data() + name.size()) {
    throw UsageError(fmt::format("A dictionary with integer keys has the key '{}', which is not an integer.", name));
  }
  return number;
}

/// What a MultiStepLR of Python keeps its milestones in, and asks for what plain dictionaries cannot do (`elements`).
bool is_milestones(const std::string& name, const Value& value) {
  return name == "milestones" && value.kind() == Value::Kind::dict && value.as<StateDict>().is_numbered();
}

/// Python has such text once in a program, however often it is written down, and pickles show it.
bool is_word(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char letter) { return std::isalnum(letter) || letter == '_'; });
}

/// numpy's name of a dtype, "<f4" and the like, as torch calls it.
std::string torch_name_of(const std::string& numpy) {
  if (numpy.size() < 3 || numpy[0] == '>') return "";
  const std::string bits = std::to_string(8 * std::atoi(numpy.c_str() + 2));
  switch (numpy[1]) {
    case 'f':
      return "float" + bits;
    case 'i':
      return "int" + bits;
    case 'u':
      return "uint" + bits;
    case 'c':
      return "complex" + bits;
    case 'b':
      return "bool";
    default:
      return "";
  }
}

}  // namespace

PickleNode* ValueTree::node(const at::Tensor& tensor) {
  const auto* facts = tensor.defined() ? facts_of(tensor.scalar_type()) : nullptr;
  if (!facts || tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta()) {
    throw CheckpointError(
        fmt::format("A tensor cannot be saved: {} has no dense data, or an unsupported dtype.", describe(tensor)));
  }
  const auto [found, is_new] = keys_.emplace(tensor.storage().unsafeGetStorageImpl(), std::to_string(storages_.size()));
  if (is_new) storages_.push_back(storage_bytes(tensor));
  PickleTensor described{.storage = found->second,
                         .dtype = facts,
                         .storage_elements = tensor.storage().nbytes() / tensor.element_size(),
                         .offset = tensor.storage_offset(),
                         .sizes = tensor.sizes().vec(),
                         .strides = tensor.strides().vec()};
  described.requires_grad = tensor.requires_grad();
  described.conjugated = tensor.is_conj();
  described.negative = tensor.is_neg();
  return tree_.tensor(std::move(described));
}

PickleNode* ValueTree::dict_node(const StateDict& dict, PickleKind kind) {
  PicklePairs items;
  for (const auto& [name, value] : dict) {
    PickleNode* key = dict.is_numbered() ? tree_.integer(number_of(name)) : tree_.key(name);
    items.emplace_back(key, is_milestones(name, value) ? dict_node(value.as<StateDict>(), PickleKind::kCounter) : node(value));
  }
  return tree_.dict(std::move(items), kind);
}

PickleNode* ValueTree::node(const Value& value) {
  const auto items_of = [&](const Value::List& list) {
    PickleItems items;
    for (const auto& item : list) items.push_back(node(item));
    return items;
  };
  switch (value.kind()) {
    case Value::Kind::none:
      return tree_.none();
    case Value::Kind::boolean:
      return tree_.boolean(value.as<bool>());
    case Value::Kind::integer:
      return tree_.integer(value.as<int64_t>());
    case Value::Kind::real:
      return tree_.number(value.as<double>());
    case Value::Kind::text:
      return is_word(value.as<std::string>()) ? tree_.key(value.as<std::string>()) : tree_.text(value.as<std::string>());
    case Value::Kind::list:
      return tree_.list(items_of(value.as<Value::List>()));
    case Value::Kind::tuple:
      return tree_.tuple(items_of(value.as<Value::Tuple>().items));
    case Value::Kind::dict:
      return dict_node(value.as<StateDict>(), PickleKind::kDict);
    case Value::Kind::tensor:
      return node(value.as<at::Tensor>());
  }
  return nullptr;
}

void ValueTree::write(ByteSink& sink, const std::string& archive) const {
  TorchFileWriter writer(sink, archive, *tree_.root);
  for (size_t i = 0; i < storages_.size(); ++i) {
    const at::Tensor bytes = storages_[i].cpu();  // one at a time
    writer.begin(std::to_string(i), static_cast<uint64_t>(bytes.numel()));
    writer.write(bytes.const_data_ptr(), static_cast<uint64_t>(bytes.numel()));
  }
  writer.finish();
}

void ValueReader::refuse(const std::string& what) const {
  throw CheckpointError(escaped(fmt::format("{} contains {}, which plain data does not support.", name_, what)));
}

at::Tensor ValueReader::tensor(const PickleTensor& tensor) {
  const auto dtype = scalar_type_of(*tensor.dtype, name_, tensor.storage);
  if (file_ == nullptr) refuse("a tensor");
  if (tensor.storage.empty()) refuse("a tensor on the meta device");
  auto& bytes = storages_[tensor.storage];
  if (!bytes.defined()) bytes = read_storage(*file_, file_->storage(tensor.storage));
  at::Tensor made = at::empty({0}, dtype).set_(bytes.storage(), tensor.offset, tensor.sizes, tensor.strides);
  if (tensor.conjugated) made = made.conj();
  if (tensor.negative) made = made._neg_view();
  return made;
}

at::Tensor ValueReader::array(const PickleArray& array) {
  const auto* facts = find_dtype(torch_name_of(array.dtype));
  if (!facts) refuse("a numpy array of dtype " + array.dtype);
  const auto dtype = scalar_type_of(*facts, name_, "a numpy array");
  const std::string& bytes = array.bytes->text();
  std::vector<int64_t> shape = array.shape;
  if (array.fortran_order) std::reverse(shape.begin(), shape.end());
  at::Tensor made = at::empty(shape, dtype);
  if (bytes.size() != made.nbytes()) refuse("a numpy array whose bytes do not fit its shape");
  std::memcpy(made.mutable_data_ptr(), bytes.data(), bytes.size());
  if (array.fortran_order)
    made = made.permute(at::IntArrayRef([&] {
      shape.clear();
      for (int64_t i = made.dim(); i-- > 0;) shape.push_back(i);
      return shape;
    }()));
  return made;
}

StateDict ValueReader::dict(const PickleDict& items) {
  StateDict dict;
  size_t numbers = 0;
  for (const auto& [key, item] : items.items) {
    if (key->is(PickleKind::kInt)) {
      ++numbers;
      dict[std::to_string(key->integer())] = value(*item);
    } else if (key->is(PickleKind::kText)) {
      dict[key->text()] = value(*item);
    } else {
      refuse(fmt::format("a dictionary with {} as a key", to_string(key->kind)));
    }
  }
  if (numbers > 0 && numbers != items.items.size()) refuse("a dictionary with both integer and text keys");
  dict.set_numbered(numbers > 0);
  return dict;
}

Value ValueReader::value(const PickleNode& node) {
  const auto list_of = [&](const PickleItems& items) {
    Value::List list;
    for (const auto* item : items) list.push_back(value(*item));
    return list;
  };
  switch (node.kind) {
    case PickleKind::kNone:
      return {};
    case PickleKind::kBool:
      return node.boolean();
    case PickleKind::kInt:
      return node.integer();
    case PickleKind::kFloat:
      return node.number();
    case PickleKind::kText:
    case PickleKind::kDevice:
    case PickleKind::kLayout:
      return node.text();
    case PickleKind::kDtype:
      return std::string(node.dtype().name);
    case PickleKind::kBytes:
    case PickleKind::kByteArray: {
      at::Tensor bytes = at::empty({static_cast<int64_t>(node.text().size())}, at::kByte);
      std::memcpy(bytes.mutable_data_ptr(), node.text().data(), node.text().size());
      return bytes;
    }
    case PickleKind::kList:
    case PickleKind::kSet:
    case PickleKind::kFrozenSet:
      return list_of(node.items());
    case PickleKind::kTuple:
    case PickleKind::kSize:
      return Value::Tuple(list_of(node.items()));
    case PickleKind::kDict:
    case PickleKind::kOrderedDict:
    case PickleKind::kCounter:
    case PickleKind::kDefaultDict:
      return dict(node.dict());
    case PickleKind::kTensor:
      return tensor(node.tensor());
    case PickleKind::kArray:
      return array(node.array());
    default:
      refuse(std::string(to_string(node.kind)));
  }
}

void write_value(ByteSink& sink, const std::string& archive, const Value& value) {
  ValueTree tree;
  tree.tree().root = tree.node(value);
  tree.write(sink, archive);
}

Value read_value(const ByteSource& source) {
  const TorchFile file(source);
  return ValueReader(file).value(file.root());
}

}  // namespace accelerate::detail
