#include <algorithm>

#include "core/escaped.h"
#include "formats/pickle_calls.h"

namespace accelerate::detail {
namespace {

/// The description of a tensor takes far more than the shortest call that makes one from what is there already.
constexpr size_t kTensorCharge = 16;

/// Arguments by position; what is missing or of another kind is told with its place.
class TensorArguments {
 public:
  TensorArguments(PickleMachine& machine, const PickleItems& items, size_t least, size_t most)
      : machine_(machine), items_(items) {
    if (items.size() < least || items.size() > most) machine.fail("a tensor with " + std::to_string(items.size()) + " arguments");
  }
  bool has(size_t at) const { return at < items_.size(); }
  const PickleNode& of_kind(size_t at, PickleKind kind) const {
    if (!items_[at]->is(kind)) {
      machine_.fail("a tensor whose argument " + std::to_string(at) + " is " + std::string(to_string(items_[at]->kind)) +
                    " instead of " + std::string(to_string(kind)));
    }
    return *items_[at];
  }
  bool boolean(size_t at) const { return of_kind(at, PickleKind::kBool).boolean(); }
  std::vector<int64_t> integers(size_t at) const { return pickled_integers(machine_, *items_[at]); }

 private:
  PickleMachine& machine_;
  const PickleItems& items_;
};

void require_shape(const PickleMachine& machine, const PickleTensor& tensor) {
  const auto negative = [](int64_t number) { return number < 0; };
  if (tensor.sizes.size() != tensor.strides.size() || tensor.offset < 0 ||
      std::any_of(tensor.sizes.begin(), tensor.sizes.end(), negative) ||
      std::any_of(tensor.strides.begin(), tensor.strides.end(), negative)) {
    machine.fail("a tensor with inconsistent sizes, strides and offset");
  }
}

/// Bits that say how the elements are to be read; whatever else may stand there is not known.
void read_tensor_metadata(PickleMachine& machine, const PickleNode& metadata, PickleTensor& tensor) {
  if (metadata.is(PickleKind::kNone)) return;
  for (const auto& [key, value] : metadata.dict().items) {
    const bool set = value->is(PickleKind::kBool) && value->boolean();
    if (key->is(PickleKind::kText) && key->text() == "conj") {
      tensor.conjugated = set;
    } else if (key->is(PickleKind::kText) && key->text() == "neg") {
      tensor.negative = set;
    } else {
      machine.fail("a tensor with unknown metadata");
    }
  }
}

PickleTensor tensor_of(PickleMachine& machine, const TensorArguments& arguments) {
  const PickleNode& storage = arguments.of_kind(0, PickleKind::kStorage);
  PickleTensor tensor = *std::get<std::unique_ptr<PickleTensor>>(storage.data);
  machine.charge(kTensorCharge + tensor.storage.size() + tensor.device.size());
  tensor.offset = arguments.of_kind(1, PickleKind::kInt).integer();
  tensor.sizes = arguments.integers(2);
  tensor.strides = arguments.integers(3);
  require_shape(machine, tensor);
  return tensor;
}

}  // namespace

PickleNode* storage_from_id(PickleMachine& machine, const PickleNode& id) {
  if (!id.is(PickleKind::kTuple) || id.items().size() < 5) machine.fail("a persistent id that is not a storage");
  const auto& items = id.items();
  const bool five = items.size() == 5 || (items.size() == 6 && items[5]->is(PickleKind::kNone));  // 6: the old format
  if (!five || !items[0]->is(PickleKind::kText) || items[0]->text() != "storage" || !items[1]->is(PickleKind::kGlobal) ||
      !items[2]->is(PickleKind::kText) || !items[3]->is(PickleKind::kText) || !items[4]->is(PickleKind::kInt) ||
      items[4]->integer() < 0) {
    machine.fail("a persistent id that is not a storage, or is a view of one");
  }
  std::string_view type = items[1]->text();
  type.remove_prefix(std::min(type.size(), type.rfind('.') + 1));
  PickleTensor storage;
  storage.untyped = type == "UntypedStorage";
  storage.dtype = storage.untyped ? find_dtype("uint8") : find_dtype_of_storage(type);
  if (storage.dtype == nullptr) machine.fail("a storage of the class " + escaped(items[1]->text(), 80));
  machine.charge(kTensorCharge + items[2]->text().size() + items[3]->text().size());
  storage.storage = items[2]->text();
  storage.device = items[3]->text();
  storage.storage_elements = static_cast<uint64_t>(items[4]->integer());
  return machine.tree().make(PickleKind::kStorage, std::make_unique<PickleTensor>(std::move(storage)));
}

/// (storage, offset, sizes, strides[, requires_grad, hooks[, metadata]]): versions 1 and 2.
PickleNode* call_rebuild_tensor(PickleMachine& machine, const PickleItems& items) {
  const TensorArguments arguments(machine, items, 4, 7);
  PickleTensor tensor = tensor_of(machine, arguments);
  if (arguments.has(4)) tensor.requires_grad = arguments.boolean(4);
  if (arguments.has(6)) read_tensor_metadata(machine, *items[6], tensor);
  return machine.tree().tensor(std::move(tensor));
}

/// (storage, offset, sizes, strides, requires_grad, hooks, dtype[, metadata]): the storage is untyped.
PickleNode* call_rebuild_tensor_v3(PickleMachine& machine, const PickleItems& items) {
  const TensorArguments arguments(machine, items, 7, 8);
  PickleTensor tensor = tensor_of(machine, arguments);
  const uint64_t bytes = tensor.storage_elements * static_cast<uint64_t>(tensor.dtype->bytes);
  tensor.requires_grad = arguments.boolean(4);
  tensor.dtype = &arguments.of_kind(6, PickleKind::kDtype).dtype();
  tensor.storage_elements = bytes / static_cast<uint64_t>(tensor.dtype->bytes);
  tensor.untyped = !tensor.dtype->storage.empty();
  if (arguments.has(7)) read_tensor_metadata(machine, *items[7], tensor);
  return machine.tree().tensor(std::move(tensor));
}

/// (tensor, requires_grad, hooks[, attributes]). Attributes of a parameter are Python objects' business.
PickleNode* call_rebuild_parameter(PickleMachine& machine, const PickleItems& items) {
  const TensorArguments arguments(machine, items, 3, 4);
  PickleTensor tensor = arguments.of_kind(0, PickleKind::kTensor).tensor();
  machine.charge(kTensorCharge + tensor.sizes.size() * 2 + tensor.storage.size());
  tensor.requires_grad = arguments.boolean(1);
  tensor.parameter = true;
  return machine.tree().tensor(std::move(tensor));
}

/// (dtype, sizes, strides, requires_grad).
PickleNode* call_rebuild_meta_tensor(PickleMachine& machine, const PickleItems& items) {
  const TensorArguments arguments(machine, items, 4, 4);
  PickleTensor tensor;
  tensor.dtype = &arguments.of_kind(0, PickleKind::kDtype).dtype();
  tensor.device = "meta";
  tensor.sizes = arguments.integers(1);
  tensor.strides = arguments.integers(2);
  tensor.requires_grad = arguments.boolean(3);
  require_shape(machine, tensor);
  return machine.tree().tensor(std::move(tensor));
}

/// (function, class, arguments, attributes): a tensor that has attributes. A subclass is not plain data.
PickleNode* call_rebuild_from_type(PickleMachine& machine, const PickleItems& items) {
  const TensorArguments arguments(machine, items, 4, 4);
  const std::string& function = arguments.of_kind(0, PickleKind::kGlobal).text();
  const std::string& type = arguments.of_kind(1, PickleKind::kGlobal).text();
  if (type != "torch.Tensor" && type != "torch.nn.parameter.Parameter") machine.fail("a tensor of the class " + type);
  const PickleItems& inner = arguments.of_kind(2, PickleKind::kTuple).items();
  if (function == "torch._utils._rebuild_tensor_v2") return call_rebuild_tensor(machine, inner);
  if (function == "torch._utils._rebuild_tensor_v3") return call_rebuild_tensor_v3(machine, inner);
  if (function == "torch._utils._rebuild_parameter") return call_rebuild_parameter(machine, inner);
  machine.fail("a tensor made by " + function);
}

}  // namespace accelerate::detail
