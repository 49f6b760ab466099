#include "formats/pickle_calls.h"

namespace accelerate::detail {
namespace {

using Kind = PickleKind;

bool is_bytes(const PickleNode& node) { return node.is(Kind::kBytes) || node.is(Kind::kByteArray); }

/// Bytes of an element of "<u4", "|b1", ...; 0 for what is not a plain number.
uint64_t element_size(const std::string& dtype) {
  if (dtype.size() < 3 || dtype.size() > 4 || std::string_view("biufc").find(dtype[1]) == std::string_view::npos) return 0;
  uint64_t size = 0;
  for (const char digit : dtype.substr(2)) {
    if (digit < '0' || digit > '9') return 0;
    size = size * 10 + static_cast<uint64_t>(digit - '0');
  }
  return size == 1 || size == 2 || size == 4 || size == 8 || size == 16 ? size : 0;
}

/// The text of a dtype that has its byte order.
const std::string& dtype_text(PickleMachine& machine, const PickleNode& node) {
  if (!node.is(Kind::kObject) || node.object().name != "numpy.dtype") machine.fail("a numpy array without a dtype");
  const PickleNode* text = node.object().state;
  if (text == nullptr) machine.fail("a numpy dtype without a byte order");
  return text->text();
}

void require_bytes(PickleMachine& machine, const PickleArray& array) {
  uint64_t bytes = element_size(array.dtype);
  for (const int64_t size : array.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes))
      machine.fail("a numpy array with an invalid size");
  }
  if (bytes != array.bytes->text().size()) {
    machine.fail("a numpy array of " + std::to_string(bytes) + " bytes has " + std::to_string(array.bytes->text().size()) +
                 " bytes of data");
  }
}

}  // namespace

/// (class, shape, code): an array still empty, which BUILD fills.
PickleNode* call_numpy_reconstruct(PickleMachine& machine, const PickleItems& items) {
  if (items.size() != 3 || !items[0]->is(Kind::kGlobal) || items[0]->text() != "numpy.ndarray")
    machine.fail("numpy's _reconstruct is supported for arrays only");
  return machine.tree().array({});
}

/// (text, align, copy): "u4". The byte order comes with BUILD; one-byte dtypes need none, but have it all the same.
PickleNode* call_numpy_dtype(PickleMachine& machine, const PickleItems& items) {
  if (items.size() != 3 || !items[0]->is(Kind::kText) || element_size("<" + items[0]->text()) == 0)
    machine.fail("a numpy dtype that is not of plain numbers");
  PickleObject dtype{"numpy.dtype", machine.tree().tuple({items[0]}), nullptr};
  return machine.tree().make(Kind::kObject, std::make_unique<PickleObject>(std::move(dtype)));
}

/// (3, byte order, None, None, None, -1, -1, flags).
void build_numpy_dtype(PickleMachine& machine, PickleObject& dtype, PickleNode* state) {
  if (!state->is(Kind::kTuple) || state->items().size() < 8 || !state->items()[1]->is(Kind::kText) ||
      (state->items()[1]->text() != "<" && state->items()[1]->text() != "|")) {
    machine.fail("a numpy dtype that is not little-endian or not of plain numbers");
  }
  for (size_t i = 2; i < 5; ++i) {
    if (!state->items()[i]->is(Kind::kNone)) machine.fail("a numpy dtype with fields");
  }
  dtype.state = machine.tree().text(state->items()[1]->text() + dtype.arguments->items()[0]->text());
}

/// (1, shape, dtype, is_fortran, bytes).
void build_array(PickleMachine& machine, PickleArray& array, const PickleNode& state) {
  if (array.bytes != nullptr) machine.fail("a numpy array is built twice");
  if (!state.is(Kind::kTuple) || state.items().size() != 5 || !state.items()[3]->is(Kind::kBool) || !is_bytes(*state.items()[4]))
    machine.fail("a numpy array whose state is not that of plain numbers");
  array.shape = pickled_integers(machine, *state.items()[1]);
  array.dtype = dtype_text(machine, *state.items()[2]);
  array.fortran_order = state.items()[3]->boolean();
  array.bytes = state.items()[4];
  require_bytes(machine, array);
}

/// (dtype, bytes).
PickleNode* call_numpy_scalar(PickleMachine& machine, const PickleItems& items) {
  if (items.size() != 2 || !is_bytes(*items[1])) machine.fail("a numpy scalar that is not a plain number");
  PickleArray array;
  array.dtype = dtype_text(machine, *items[0]);
  array.bytes = items[1];
  array.scalar = true;
  require_bytes(machine, array);
  return machine.tree().array(std::move(array));
}

/// (bytes, dtype, shape, order): what protocol 5 uses.
PickleNode* call_numpy_from_buffer(PickleMachine& machine, const PickleItems& items) {
  if (items.size() != 4 || !is_bytes(*items[0]) || !items[3]->is(Kind::kText))
    machine.fail("a numpy array that is not of plain numbers");
  PickleArray array;
  array.bytes = items[0];
  array.dtype = dtype_text(machine, *items[1]);
  array.shape = pickled_integers(machine, *items[2]);
  array.fortran_order = items[3]->text() == "F";
  require_bytes(machine, array);
  return machine.tree().array(std::move(array));
}

}  // namespace accelerate::detail
