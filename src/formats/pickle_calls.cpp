#include "formats/pickle_calls.h"

#include <algorithm>
#include <array>

#include "core/escaped.h"

namespace accelerate::detail {
namespace {

using Kind = PickleKind;

/// Python 2 and numpy 1 called some modules otherwise; pickles keep their names.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kRenamedModules = {
    {{"__builtin__", "builtins"},
     {"copy_reg", "copyreg"},
     {"numpy.core.multiarray", "numpy._core.multiarray"},
     {"numpy.core.numeric", "numpy._core.numeric"}}};

void require_count(const PickleMachine& machine, const PickleItems& arguments, size_t least, size_t most, const char* what) {
  if (arguments.size() < least || arguments.size() > most)
    machine.fail(std::string(what) + " with " + std::to_string(arguments.size()) + " arguments");
}

/// A code point of UTF-8 that fits into one byte, or -1. `text` has been checked to be UTF-8.
int next_latin1(std::string_view text, size_t& at) {
  const auto first = static_cast<unsigned char>(text[at++]);
  if (first < 0x80) return first;
  if (first > 0xC3 || at >= text.size()) return -1;
  return (first & 0x03) << 6 | (static_cast<unsigned char>(text[at++]) & 0x3F);
}

/// Protocol 2 has no bytes: they are written as text in which every character is one.
PickleNode* call_encode(PickleMachine& machine, const PickleItems& arguments) {
  require_count(machine, arguments, 2, 2, "_codecs.encode");
  if (!arguments[0]->is(Kind::kText) || !arguments[1]->is(Kind::kText) || arguments[1]->text() != "latin1")
    machine.fail("_codecs.encode is supported for bytes only");
  const std::string& text = arguments[0]->text();
  machine.charge(text.size());
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const int byte = next_latin1(text, at);
    if (byte < 0) machine.fail("encoded bytes with a character above 255");
    bytes.push_back(static_cast<char>(byte));
  }
  return machine.tree().bytes(std::move(bytes));
}

PickleNode* call_bytes(PickleMachine& machine, const PickleItems& arguments) {
  require_count(machine, arguments, 0, 0, "bytes");
  return machine.tree().bytes("");
}

PickleNode* call_bytearray(PickleMachine& machine, const PickleItems& arguments) {
  require_count(machine, arguments, 0, 2, "bytearray");
  std::string bytes;
  if (arguments.size() == 2) {
    bytes = call_encode(machine, {arguments[0], arguments[1]->is(Kind::kText) && arguments[1]->text() == "latin-1"
                                                    ? machine.tree().text("latin1")
                                                    : arguments[1]})
                ->text();
  } else if (arguments.size() == 1) {
    if (!arguments[0]->is(Kind::kBytes)) machine.fail("a bytearray of " + std::string(to_string(arguments[0]->kind)));
    machine.charge(arguments[0]->text().size());
    bytes = arguments[0]->text();
  }
  return machine.tree().make(Kind::kByteArray, std::move(bytes));
}

template <Kind kKind>
PickleNode* call_set(PickleMachine& machine, const PickleItems& arguments) {
  require_count(machine, arguments, 0, 1, "a set");
  PickleItems members;
  if (arguments.size() == 1) {
    if (!arguments[0]->is(Kind::kList) && !arguments[0]->is(Kind::kTuple)) machine.fail("a set that is not built from a list");
    machine.charge(arguments[0]->items().size() * sizeof(PickleNode*) / 4);
    members = arguments[0]->items();
  }
  return machine.tree().make(kKind, std::move(members));
}

PickleNode* call_complex(PickleMachine& machine, const PickleItems& arguments) {
  require_count(machine, arguments, 2, 2, "complex");
  return machine.tree().complex({arguments[0]->number(), arguments[1]->number()});
}

PickleNode* call_slice(PickleMachine& machine, const PickleItems& arguments) {
  require_count(machine, arguments, 3, 3, "slice");
  return machine.tree().make(Kind::kSlice, arguments);
}

/// Python 2 wrote an OrderedDict as a list of pairs.
PickleNode* call_ordered_dict(PickleMachine& machine, const PickleItems& arguments) {
  require_count(machine, arguments, 0, 1, "OrderedDict");
  PicklePairs pairs;
  if (arguments.size() == 1) {
    machine.charge(arguments[0]->items().size() * 4);
    for (const PickleNode* pair : arguments[0]->items()) {
      if (pair->items().size() != 2) machine.fail("an OrderedDict of items that are not pairs");
      pairs.push_back({pair->items()[0], pair->items()[1]});
    }
  }
  return machine.tree().dict(std::move(pairs), Kind::kOrderedDict);
}

PickleNode* call_counter(PickleMachine& machine, const PickleItems& arguments) {
  require_count(machine, arguments, 0, 1, "Counter");
  PicklePairs pairs;
  if (arguments.size() == 1) {
    machine.charge(arguments[0]->dict().items.size() * 4);
    pairs = arguments[0]->dict().items;
  }
  return machine.tree().dict(std::move(pairs), Kind::kCounter);
}

PickleNode* call_default_dict(PickleMachine& machine, const PickleItems& arguments) {
  require_count(machine, arguments, 0, 1, "defaultdict");
  PickleNode* made = machine.tree().dict({}, Kind::kDefaultDict);
  if (arguments.size() == 1 && arguments[0]->is(Kind::kGlobal)) {
    made->own_dict().factory = arguments[0];
  } else if (!arguments.empty() && !arguments[0]->is(Kind::kNone)) {
    machine.fail("a defaultdict whose factory is " + std::string(to_string(arguments[0]->kind)));
  }
  return made;
}

PickleNode* call_size(PickleMachine& machine, const PickleItems& arguments) {
  require_count(machine, arguments, 1, 1, "torch.Size");
  pickled_integers(machine, *arguments[0]);
  return machine.tree().make(Kind::kSize, arguments[0]->items());
}

PickleNode* call_device(PickleMachine& machine, const PickleItems& arguments) {
  require_count(machine, arguments, 1, 2, "torch.device");
  machine.charge(arguments[0]->text().size());
  std::string name = arguments[0]->text();
  if (arguments.size() == 2) name += ":" + std::to_string(arguments[1]->integer());
  return machine.tree().make(Kind::kDevice, std::move(name));
}

PickleNode* call_layout(PickleMachine& machine, const PickleItems& arguments) {
  require_count(machine, arguments, 1, 1, "torch.layout");
  if (arguments[0]->text() != "torch.strided")
    machine.fail("the layout " + escaped(arguments[0]->text(), 40) + " is not supported");
  return machine.tree().make(Kind::kLayout, arguments[0]->text());
}

// Storage classes stand in persistent ids, ndarray, Tensor and Parameter as arguments, builtins as factories of a defaultdict.
constexpr std::array kKnownGlobals = {
    KnownGlobal{"_codecs", "encode", call_encode},
    KnownGlobal{"builtins", "bytes", call_bytes},
    KnownGlobal{"builtins", "bytearray", call_bytearray},
    KnownGlobal{"builtins", "set", call_set<Kind::kSet>},
    KnownGlobal{"builtins", "frozenset", call_set<Kind::kFrozenSet>},
    KnownGlobal{"builtins", "complex", call_complex},
    KnownGlobal{"builtins", "slice", call_slice},
    KnownGlobal{"builtins", "dict", nullptr},
    KnownGlobal{"builtins", "list", nullptr},
    KnownGlobal{"builtins", "int", nullptr},
    KnownGlobal{"builtins", "float", nullptr},
    KnownGlobal{"collections", "OrderedDict", call_ordered_dict},
    KnownGlobal{"collections", "Counter", call_counter},
    KnownGlobal{"collections", "defaultdict", call_default_dict},
    KnownGlobal{"torch", "Size", call_size},
    KnownGlobal{"torch", "device", call_device},
    KnownGlobal{"torch", "Tensor", nullptr},
    KnownGlobal{"torch.nn.parameter", "Parameter", nullptr},
    KnownGlobal{"torch.serialization", "_get_layout", call_layout},
    KnownGlobal{"torch.storage", "UntypedStorage", nullptr},
    KnownGlobal{"torch", "UntypedStorage", nullptr},
    KnownGlobal{"torch._utils", "_rebuild_tensor", call_rebuild_tensor},
    KnownGlobal{"torch._utils", "_rebuild_tensor_v2", call_rebuild_tensor},
    KnownGlobal{"torch._utils", "_rebuild_tensor_v3", call_rebuild_tensor_v3},
    KnownGlobal{"torch._utils", "_rebuild_parameter", call_rebuild_parameter},
    KnownGlobal{"torch._utils", "_rebuild_parameter_with_state", call_rebuild_parameter},
    KnownGlobal{"torch._utils", "_rebuild_meta_tensor_no_storage", call_rebuild_meta_tensor},
    KnownGlobal{"torch._tensor", "_rebuild_from_type_v2", call_rebuild_from_type},
    KnownGlobal{"numpy", "ndarray", nullptr},
    KnownGlobal{"numpy", "dtype", call_numpy_dtype},
    KnownGlobal{"numpy._core.multiarray", "_reconstruct", call_numpy_reconstruct},
    KnownGlobal{"numpy._core.multiarray", "scalar", call_numpy_scalar},
    KnownGlobal{"numpy._core.numeric", "_frombuffer", call_numpy_from_buffer},
};
constexpr KnownGlobal kStorageClass{"torch", "Storage", nullptr};

}  // namespace

PickleNode* call_getattr(PickleMachine& machine, const PickleItems& arguments) {
  if (arguments.size() != 2 || !arguments[0]->is(Kind::kGlobal) || !arguments[1]->is(Kind::kText) ||
      arguments[0]->text() == kGetAttribute)
    machine.fail("builtins.getattr is supported for members of enumerations only");
  PickleNode* name = machine.tree().make(Kind::kTuple, PickleItems{arguments[1]});
  return machine.tree().make(Kind::kObject,
                             std::make_unique<PickleObject>(PickleObject{.name = arguments[0]->text(), .arguments = name}));
}

std::string_view modern_module(std::string_view module) {
  for (const auto& [old_name, new_name] : kRenamedModules) {
    if (module == old_name) return new_name;
  }
  return module;
}

const KnownGlobal* find_known_global(std::string_view module, std::string_view name) {
  const auto* known = std::find_if(kKnownGlobals.begin(), kKnownGlobals.end(),
                                   [&](const KnownGlobal& global) { return global.module == module && global.name == name; });
  if (known != kKnownGlobals.end()) return known;
  return module == "torch" && find_dtype_of_storage(name) != nullptr ? &kStorageClass : nullptr;
}

std::vector<int64_t> pickled_integers(PickleMachine& machine, const PickleNode& node) {
  if (!node.is(PickleKind::kTuple) && !node.is(PickleKind::kList) && !node.is(PickleKind::kSize))
    machine.fail("a shape that is " + std::string(to_string(node.kind)));
  machine.charge(node.items().size());
  std::vector<int64_t> numbers;
  for (const PickleNode* item : node.items()) {
    if (!item->is(PickleKind::kInt)) machine.fail("a shape with " + std::string(to_string(item->kind)) + " in it");
    numbers.push_back(item->integer());
  }
  return numbers;
}

}  // namespace accelerate::detail
