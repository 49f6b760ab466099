#pragma once

#include <accelerate/core/error.h>

#include <complex>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "core/pieces.h"
#include "formats/dtype_facts.h"

/// The plain data of a pickle: what state dicts, optimizer states and random states are made of. No torch.
namespace accelerate::detail {

enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInt,
  kBigInt,
  kFloat,
  kComplex,
  kText,
  kBytes,
  kByteArray,
  kList,
  kTuple,
  kSet,
  kFrozenSet,
  kDict,
  kOrderedDict,
  kCounter,
  kDefaultDict,
  kTensor,
  kArray,
  kSize,
  kDevice,
  kDtype,
  kLayout,
  kSlice,
  kObject,
  kStorage,
  kGlobal,  // while reading only: never in a tree that the reader hands out
};

/// "a list", "an OrderedDict": for messages.
std::string_view to_string(PickleKind kind);

/// A value is of another kind than was asked for.
class PickleKindError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// A tensor as files describe it. Its elements lie in the storage called `storage`; tensors that share one name it alike.
struct PickleTensor {
  std::string storage;  // "" on the meta device, which has none
  const DtypeFacts* dtype = nullptr;
  std::string device = "cpu";  // where it was: "cpu", "cuda:0"
  uint64_t storage_elements = 0;
  int64_t offset = 0;  // in elements, like the strides
  std::vector<int64_t> sizes, strides;
  bool requires_grad = false, parameter = false, conjugated = false, negative = false;
  /// The storage is kept as plain bytes although the dtype has a class of storages: files of other writers.
  bool untyped = false;
};

struct PickleNode;
using PickleItems = Pieces<PickleNode*>;
using PicklePairs = Pieces<std::pair<PickleNode*, PickleNode*>>;

/// A numpy array or scalar, its bytes in the file's order.
struct PickleArray {
  std::string dtype;  // as numpy writes it: "<u4", "|b1"
  std::vector<int64_t> shape;
  PickleNode* bytes = nullptr;  // kBytes or kByteArray
  bool fortran_order = false, scalar = false;
};

/// A dict of any kind, in order. Keys are hashable and differ.
struct PickleDict {
  PicklePairs items;
  PickleNode* attributes = nullptr;  // of an OrderedDict: state dicts carry `_metadata` there
  PickleNode* factory = nullptr;     // of a defaultdict: its text is "builtins.list"
};

/// An instance of a class that a caller of the reader allowed by name.
struct PickleObject {
  std::string_view name = {};  // "module.Class", a text of the tree
  PickleNode* arguments = nullptr;
  PickleNode* state = nullptr;
  bool called = false;  // made by a call of the class (an enum's member); else by __new__, without __init__
};

/// One value. Values belong to a PickleTree and may be reached by several ways: equal addresses mean the same object. A file may
/// hold one for each of its bytes, so what is large, or mostly absent, lies behind a pointer (of empty containers: nullptr).
struct PickleNode {
  using Data =
      std::variant<std::monostate, bool, int64_t, double, std::unique_ptr<std::complex<double>>, std::unique_ptr<std::string>,
                   std::unique_ptr<PickleItems>, std::unique_ptr<PickleDict>, std::unique_ptr<PickleTensor>,
                   std::unique_ptr<PickleArray>, std::unique_ptr<PickleObject>, const DtypeFacts*>;
  PickleKind kind = PickleKind::kNone;
  /// Scratch space for a traversal of the tree: see pickle_check.cpp.
  uint32_t mark = 0;
  Data data;

  bool is(PickleKind other) const { return kind == other; }
  bool is_dict() const { return std::holds_alternative<std::unique_ptr<PickleDict>>(data); }
  /// Has it `items`?
  bool is_row() const { return std::holds_alternative<std::unique_ptr<PickleItems>>(data); }
  /// Each throws PickleKindError, saying what was found, when the value is of another kind.
  bool boolean() const;
  int64_t integer() const;
  /// A float, or an int as one.
  double number() const;
  /// Of kText, kBytes, kByteArray; of kBigInt its little-endian two's complement; of kDevice and kLayout the name.
  const std::string& text() const;
  /// Of kList, kTuple, kSet, kFrozenSet, kSize, kSlice.
  const PickleItems& items() const;
  const PickleDict& dict() const;
  const PickleTensor& tensor() const;
  const PickleArray& array() const;
  const PickleObject& object() const;
  const DtypeFacts& dtype() const;
  std::complex<double> complex() const;
  /// The same as items() and dict(), to be changed.
  PickleItems& own_items();
  PickleDict& own_dict();
  /// The value of a text key of any dict, or nullptr.
  const PickleNode* find(std::string_view key) const;
};

/// Owns values. Addresses stay as they are, also when the tree is moved.
class PickleTree {
 public:
  /// What the file holds; nullptr in an empty tree.
  PickleNode* root = nullptr;

  PickleNode* make(PickleKind kind, PickleNode::Data data = {});
  PickleNode* make(PickleKind kind, std::string text) { return make(kind, std::make_unique<std::string>(std::move(text))); }
  PickleNode* make(PickleKind kind, PickleItems items);
  PickleNode* complex(std::complex<double> value) {
    return make(PickleKind::kComplex, std::make_unique<std::complex<double>>(value));
  }
  PickleNode* none() { return make(PickleKind::kNone); }
  PickleNode* boolean(bool value) { return make(PickleKind::kBool, value); }
  PickleNode* integer(int64_t value) { return make(PickleKind::kInt, value); }
  PickleNode* number(double value) { return make(PickleKind::kFloat, value); }
  PickleNode* text(std::string value) { return make(PickleKind::kText, std::move(value)); }
  /// The same node for the same text. Python has most keys once, however many dicts they stand in, and pickles show it.
  PickleNode* key(const std::string& text);
  PickleNode* bytes(std::string value) { return make(PickleKind::kBytes, std::move(value)); }
  PickleNode* list(PickleItems items = {}) { return make(PickleKind::kList, std::move(items)); }
  PickleNode* tuple(PickleItems items = {}) { return make(PickleKind::kTuple, std::move(items)); }
  PickleNode* dict(PicklePairs items = {}, PickleKind kind = PickleKind::kDict);
  PickleNode* tensor(PickleTensor value);
  PickleNode* array(PickleArray value);
  /// How many values there are.
  size_t size() const { return nodes_.size(); }

 private:
  std::deque<PickleNode> nodes_;
  std::unordered_map<std::string, PickleNode*> keys_;
};

/// The decimal digits of a kBigInt.
std::string big_integer_text(const std::string& little_endian);

}  // namespace accelerate::detail
