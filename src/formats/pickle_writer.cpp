#include "formats/pickle_writer.h"

#include <accelerate/core/error.h>

#include <algorithm>

#include "formats/pickle_output.h"

namespace accelerate::detail {
namespace {

using Kind = PickleKind;

constexpr size_t kDeepestWritten = 400;
constexpr size_t kBatch = 1000;  // items after one mark, as Python's pickler has it

/// Words of torch's own that are one object in Python wherever they stand.
bool is_torch_word(const std::string& text) { return text == "storage" || text == "cpu" || text == "latin1"; }

class PickleEmitter {
 public:
  std::string run(const PickleNode& root) {
    emit(root, 0);
    out_.code('.');
    return out_.take();
  }

 private:
  void emit(const PickleNode& node, size_t depth);
  void emit_object(const PickleNode& node, size_t depth);
  void emit_text(const PickleNode& node);
  void emit_bytes(const PickleNode& node);
  void emit_tuple(const PickleNode& node, size_t depth);
  void emit_instance(const PickleNode& node, size_t depth);
  void emit_list_items(const PickleItems& items, size_t depth);
  void emit_set(const PickleNode& node, size_t depth);
  void emit_dict(const PickleNode& node, size_t depth);
  void emit_factory(const PickleDict& dict);
  void emit_exact_items(const PicklePairs& items, size_t depth);
  void emit_iterated_items(const PicklePairs& items, size_t depth);
  void emit_pair(const std::pair<PickleNode*, PickleNode*>& pair, size_t depth);
  void emit_small_call(const PickleNode& node, size_t depth);
  void emit_device(const std::string& name);
  void emit_tensor(const PickleNode& node);
  void emit_tensor_call(const PickleTensor& tensor);
  void emit_meta_tensor(const PickleTensor& tensor);
  void emit_storage(const PickleTensor& tensor, bool untyped);
  void emit_tensor_bits(const PickleTensor& tensor);
  void emit_array(const PickleNode& node);
  void emit_numpy_dtype(const std::string& dtype);
  void dtype(const DtypeFacts& facts) { out_.global("torch", std::string(facts.name)); }
  void empty_hooks();
  /// The arguments are complete: they are remembered, and the call is made.
  void call() {
    out_.memoize();
    out_.code('R');
  }

  PickleOutput out_;
};

void PickleEmitter::emit(const PickleNode& node, size_t depth) {
  if (depth > kDeepestWritten)
    throw UsageError("Cannot save a value that is nested more than 400 levels deep or contains itself.");
  switch (node.kind) {
    case Kind::kNone:
      return out_.code('N');
    case Kind::kBool:
      return out_.boolean(node.boolean());
    case Kind::kInt:
      return out_.integer(node.integer());
    case Kind::kBigInt:
      return out_.big_integer(node.text());
    case Kind::kFloat:
      return out_.real(node.number());
    case Kind::kDtype:
      return dtype(node.dtype());
    default:
      if (!out_.recalled(node)) emit_object(node, depth);
  }
}

void PickleEmitter::emit_object(const PickleNode& node, size_t depth) {
  switch (node.kind) {
    case Kind::kText:
      return emit_text(node);
    case Kind::kBytes:
      return emit_bytes(node);
    case Kind::kTuple:
      return emit_tuple(node, depth);
    case Kind::kList:
      out_.code(']');
      out_.memoize(node);
      return emit_list_items(node.items(), depth);
    case Kind::kSet:
    case Kind::kFrozenSet:
      return emit_set(node, depth);
    case Kind::kDict:
    case Kind::kOrderedDict:
    case Kind::kCounter:
    case Kind::kDefaultDict:
      return emit_dict(node, depth);
    case Kind::kTensor:
      return emit_tensor(node);
    case Kind::kArray:
      return emit_array(node);
    case Kind::kObject:
      return emit_instance(node, depth);
    default:
      return emit_small_call(node, depth);
  }
}

void PickleEmitter::emit_text(const PickleNode& node) {
  if (is_torch_word(node.text())) return out_.word(node.text());
  out_.text(node.text());
  out_.memoize(node);
}

void PickleEmitter::emit_bytes(const PickleNode& node) {
  if (!node.text().empty()) {
    out_.bytes_call(node.text());
    out_.memoize(node);
  } else if (!out_.recalled("no bytes")) {  // b"" is one object in Python
    out_.bytes_call("");
    out_.memoize("no bytes");
  }
}

void PickleEmitter::emit_tuple(const PickleNode& node, size_t depth) {
  const auto& items = node.items();
  out_.begin_tuple(items.size());
  for (const PickleNode* item : items) emit(*item, depth + 1);
  out_.end_tuple(items.size());
  if (!items.empty()) out_.memoize(node);
}

/// Python does not number the empty tuple either.
void PickleEmitter::emit_instance(const PickleNode& node, size_t depth) {
  const PickleObject& object = node.object();
  const size_t dot = object.name.rfind('.');
  if (dot == std::string_view::npos) throw UsageError("Cannot pickle an object of a class without a module.");
  out_.global(std::string(object.name.substr(0, dot)), std::string(object.name.substr(dot + 1)));
  object.arguments != nullptr ? emit(*object.arguments, depth + 1) : out_.begin_tuple(0);
  out_.code(object.called ? 'R' : '\x81');
  out_.memoize(node);
  if (object.state == nullptr) return;
  emit(*object.state, depth + 1);
  out_.code('b');
}

void PickleEmitter::emit_list_items(const PickleItems& items, size_t depth) {
  if (items.size() == 1) {
    emit(*items[0], depth + 1);
    return out_.code('a');
  }
  for (size_t at = 0; at < items.size();) {
    out_.code('(');
    for (const size_t end = std::min(items.size(), at + kBatch); at < end; ++at) emit(*items[at], depth + 1);
    out_.code('e');
  }
}

void PickleEmitter::emit_set(const PickleNode& node, size_t depth) {
  out_.global("__builtin__", node.is(Kind::kSet) ? "set" : "frozenset");
  out_.code(']');
  out_.memoize();
  emit_list_items(node.items(), depth);
  out_.end_tuple(1);
  call();
  out_.memoize(node);
}

void PickleEmitter::emit_dict(const PickleNode& node, size_t depth) {
  const PickleDict& dict = node.dict();
  if (node.is(Kind::kDict)) {
    out_.code('}');
    out_.memoize(node);
    return emit_exact_items(dict.items, depth);
  }
  if (node.is(Kind::kCounter)) {
    out_.global("collections", "Counter");
    out_.code('}');
    out_.memoize();
    emit_exact_items(dict.items, depth);
    out_.end_tuple(1);
    call();
    return out_.memoize(node);
  }
  out_.global("collections", node.is(Kind::kOrderedDict) ? "OrderedDict" : "defaultdict");
  emit_factory(dict);
  out_.code('R');
  out_.memoize(node);
  emit_iterated_items(dict.items, depth);
  if (dict.attributes != nullptr) {
    emit(*dict.attributes, depth + 1);
    out_.code('b');
  }
}

void PickleEmitter::emit_factory(const PickleDict& dict) {
  if (dict.factory == nullptr) return out_.begin_tuple(0);
  const std::string& factory = dict.factory->text();
  const size_t dot = factory.rfind('.');
  const std::string module = factory.substr(0, dot);
  out_.global(module == "builtins" ? "__builtin__" : module, factory.substr(dot + 1));
  out_.end_tuple(1);
  out_.memoize();
}

void PickleEmitter::emit_pair(const std::pair<PickleNode*, PickleNode*>& pair, size_t depth) {
  emit(*pair.first, depth + 1);
  emit(*pair.second, depth + 1);
}

/// A plain dict: after a full batch Python begins another, even when nothing is left for it.
void PickleEmitter::emit_exact_items(const PicklePairs& items, size_t depth) {
  if (items.size() < 2) return emit_iterated_items(items, depth);
  size_t at = 0, done = 0;
  do {
    out_.code('(');
    for (done = 0; at < items.size() && done < kBatch; ++at, ++done) emit_pair(items[at], depth);
    out_.code('u');
  } while (done == kBatch);
}

/// Other dicts come from an iterator: a batch of one has no mark.
void PickleEmitter::emit_iterated_items(const PicklePairs& items, size_t depth) {
  for (size_t at = 0; at < items.size();) {
    const size_t end = std::min(items.size(), at + kBatch);
    const bool several = end - at > 1;
    if (several) out_.code('(');
    for (; at < end; ++at) emit_pair(items[at], depth);
    out_.code(several ? 'u' : 's');
  }
}

void PickleEmitter::emit_device(const std::string& name) {
  out_.global("torch", "device");
  const size_t colon = name.find(':');
  const std::string type = name.substr(0, colon);
  if (is_torch_word(type)) {
    out_.word(type);
  } else {
    out_.text(type);
    out_.memoize();
  }
  if (colon != std::string::npos) out_.integer(std::stoi(name.substr(colon + 1)));
  out_.end_tuple(colon == std::string::npos ? 1 : 2);
}

/// A class or function and a few arguments.
void PickleEmitter::emit_small_call(const PickleNode& node, size_t depth) {
  if (node.is(Kind::kComplex)) {
    const auto value = node.complex();
    out_.global("__builtin__", "complex");
    out_.real(value.real());
    out_.real(value.imag());
    out_.end_tuple(2);
  } else if (node.is(Kind::kByteArray)) {
    out_.global("__builtin__", "bytearray");
    if (node.text().empty()) {
      out_.codes(")R");
      return out_.memoize(node);
    }
    out_.bytes_call(node.text());
    out_.memoize();
    out_.end_tuple(1);
  } else if (node.is(Kind::kSize)) {
    out_.global("torch", "Size");
    std::vector<int64_t> sizes;
    for (const PickleNode* item : node.items()) sizes.push_back(item->integer());
    out_.integers(sizes);
    out_.end_tuple(1);
  } else if (node.is(Kind::kSlice)) {
    out_.global("__builtin__", "slice");
    for (const PickleNode* item : node.items()) emit(*item, depth + 1);
    out_.end_tuple(3);
  } else if (node.is(Kind::kDevice)) {
    emit_device(node.text());
  } else if (node.is(Kind::kLayout)) {
    out_.global("torch.serialization", "_get_layout");
    out_.word(node.text());
    out_.end_tuple(1);
  } else {
    throw UsageError("Cannot pickle " + std::string(to_string(node.kind)) + ".");
  }
  call();
  out_.memoize(node);
}

void PickleEmitter::empty_hooks() {
  out_.global("collections", "OrderedDict");
  out_.codes(")R");
  out_.memoize();
}

void PickleEmitter::emit_storage(const PickleTensor& tensor, bool untyped) {
  out_.code('(');
  out_.word("storage");
  untyped ? out_.global("torch.storage", "UntypedStorage") : out_.global("torch", std::string(tensor.dtype->storage));
  if (!out_.recalled("storage " + tensor.storage)) {
    out_.text(tensor.storage);
    out_.memoize("storage " + tensor.storage);
  }
  out_.word(tensor.device);
  out_.integer(static_cast<int64_t>(tensor.storage_elements * (untyped ? static_cast<uint64_t>(tensor.dtype->bytes) : 1)));
  out_.code('t');
  out_.memoize();
  out_.code('Q');
}

void PickleEmitter::emit_tensor_bits(const PickleTensor& tensor) {
  if (!tensor.conjugated && !tensor.negative) return;
  const bool both = tensor.conjugated && tensor.negative;
  out_.code('}');
  out_.memoize();
  if (both) out_.code('(');
  for (const auto& [name, set] : {std::pair("conj", tensor.conjugated), std::pair("neg", tensor.negative)}) {
    if (!set) continue;
    out_.word(name);
    out_.boolean(true);
  }
  out_.code(both ? 'u' : 's');
}

/// The elements of a parameter are a tensor of its own, which asks for no gradient.
void PickleEmitter::emit_tensor_call(const PickleTensor& tensor) {
  const bool by_dtype = tensor.dtype->storage.empty() || tensor.untyped;
  out_.global("torch._utils", by_dtype ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
  out_.code('(');
  emit_storage(tensor, by_dtype);
  out_.integer(tensor.offset);
  out_.integers(tensor.sizes);
  out_.integers(tensor.strides);
  out_.boolean(tensor.requires_grad && !tensor.parameter);
  empty_hooks();
  if (by_dtype) dtype(*tensor.dtype);
  emit_tensor_bits(tensor);
  out_.code('t');
  call();
}

void PickleEmitter::emit_meta_tensor(const PickleTensor& tensor) {
  out_.global("torch._utils", "_rebuild_meta_tensor_no_storage");
  out_.code('(');
  dtype(*tensor.dtype);
  out_.integers(tensor.sizes);
  out_.integers(tensor.strides);
  out_.boolean(tensor.requires_grad);
  out_.code('t');
  call();
}

void PickleEmitter::emit_tensor(const PickleNode& node) {
  const PickleTensor& tensor = node.tensor();
  if (tensor.parameter) out_.global("torch._utils", "_rebuild_parameter");
  tensor.device == "meta" ? emit_meta_tensor(tensor) : emit_tensor_call(tensor);
  if (tensor.parameter) {
    out_.memoize();
    out_.boolean(tensor.requires_grad);
    empty_hooks();
    out_.end_tuple(3);
    call();
  }
  out_.memoize(node);
}

/// A dtype is remembered before its state is written.
void PickleEmitter::emit_numpy_dtype(const std::string& dtype) {
  if (out_.recalled("dtype " + dtype)) return;
  out_.global("numpy", "dtype");
  out_.text(dtype.substr(1));
  out_.memoize();
  out_.boolean(false);  // not aligned
  out_.boolean(true);   // a copy
  out_.end_tuple(3);
  call();
  out_.memoize("dtype " + dtype);
  out_.code('(');
  out_.integer(3);
  out_.word(dtype.substr(0, 1));
  out_.codes("NNN");
  for (const int64_t number : {-1, -1, 0}) out_.integer(number);
  out_.code('t');
  out_.memoize();
  out_.code('b');
}

void PickleEmitter::emit_array(const PickleNode& node) {
  const PickleArray& array = node.array();
  out_.global("numpy._core.multiarray", array.scalar ? "scalar" : "_reconstruct");
  if (array.scalar) {
    emit_numpy_dtype(array.dtype);
    emit(*array.bytes, 0);
    out_.end_tuple(2);
    call();
    return out_.memoize(node);
  }
  out_.global("numpy", "ndarray");
  out_.integers({0});
  if (!out_.recalled("byte b")) {
    out_.bytes_call("b");
    out_.memoize("byte b");
  }
  out_.end_tuple(3);
  call();
  out_.memoize(node);
  out_.code('(');
  out_.integer(1);
  out_.integers(array.shape);
  emit_numpy_dtype(array.dtype);
  out_.boolean(array.fortran_order);
  emit(*array.bytes, 0);
  out_.code('t');
  out_.memoize();
  out_.code('b');
}

}  // namespace

std::string write_pickle(const PickleNode& root) { return PickleEmitter().run(root); }

}  // namespace accelerate::detail
