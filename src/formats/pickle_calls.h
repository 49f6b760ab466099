#pragma once

#include <string>

#include "formats/pickle_machine.h"

/// The classes and functions that a pickle of plain data may use, and the results of their calls.
namespace accelerate::detail {

/// A name that is understood. `call` makes the value of calling it with `arguments`; nullptr for what only stands as an argument.
struct KnownGlobal {
  std::string_view module, name;
  PickleNode* (*call)(PickleMachine& machine, const PickleItems& arguments);
};

/// The entry of "module.name", in whichever spelling Python 2, numpy 1 or torch used; nullptr when it is not known.
const KnownGlobal* find_known_global(std::string_view module, std::string_view name);

/// `builtins` for Python 2's `__builtin__`, and the like.
std::string_view modern_module(std::string_view module);

/// The storage that a persistent id (kind, class, key, device, elements) names.
PickleNode* storage_from_id(PickleMachine& machine, const PickleNode& id);

/// Fills a numpy array or dtype that BUILD gives its state to.
void build_array(PickleMachine& machine, PickleArray& array, const PickleNode& state);
void build_numpy_dtype(PickleMachine& machine, PickleObject& dtype, PickleNode* state);

/// As which Python 3.11.0 to 3.11.3 write members of enumerations, where classes are read. A member becomes an object of its
/// class with its name. Nothing else is got of anything.
inline constexpr std::string_view kGetAttribute = "builtins.getattr";
PickleNode* call_getattr(PickleMachine&, const PickleItems&);

// Calls, by the file they are made in.
PickleNode* call_rebuild_tensor(PickleMachine&, const PickleItems&);
PickleNode* call_rebuild_tensor_v3(PickleMachine&, const PickleItems&);
PickleNode* call_rebuild_parameter(PickleMachine&, const PickleItems&);
PickleNode* call_rebuild_meta_tensor(PickleMachine&, const PickleItems&);
PickleNode* call_rebuild_from_type(PickleMachine&, const PickleItems&);
PickleNode* call_numpy_reconstruct(PickleMachine&, const PickleItems&);
PickleNode* call_numpy_dtype(PickleMachine&, const PickleItems&);
PickleNode* call_numpy_scalar(PickleMachine&, const PickleItems&);
PickleNode* call_numpy_from_buffer(PickleMachine&, const PickleItems&);

/// The ints of a tuple, list or torch.Size, charged for.
std::vector<int64_t> pickled_integers(PickleMachine& machine, const PickleNode& node);

}  // namespace accelerate::detail
