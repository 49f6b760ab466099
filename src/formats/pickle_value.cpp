#include "formats/pickle_value.h"

#include <algorithm>
#include <array>

namespace accelerate::detail {
namespace {

constexpr std::array<std::string_view, 27> kKindNames = {
    "None",           "a bool",         "an int",        "a long int", "a float",       "a complex",          "text",
    "bytes",          "a bytearray",    "a list",        "a tuple",    "a set",         "a frozenset",        "a dict",
    "an OrderedDict", "a Counter",      "a defaultdict", "a tensor",   "a numpy array", "a torch.Size",       "a torch.device",
    "a torch.dtype",  "a torch.layout", "a slice",       "an object",  "a storage",     "a class or function"};

template <typename T>
const T& get_as(const PickleNode& node, const char* wanted) {
  if (const T* value = std::get_if<T>(&node.data)) return *value;
  throw PickleKindError("A pickled value is " + std::string(to_string(node.kind)) + " where " + wanted + " was expected.");
}

/// What lies behind a pointer; nothing there is an empty one.
template <typename T>
const T& behind(const PickleNode& node, const char* wanted) {
  static const T kEmpty;
  const auto& pointer = get_as<std::unique_ptr<T>>(node, wanted);
  return pointer ? *pointer : kEmpty;
}

template <typename T>
T& made_behind(PickleNode& node, const char* wanted) {
  get_as<std::unique_ptr<T>>(node, wanted);
  auto& pointer = std::get<std::unique_ptr<T>>(node.data);
  if (!pointer) pointer = std::make_unique<T>();
  return *pointer;
}

}  // namespace

std::string_view to_string(PickleKind kind) { return kKindNames.at(static_cast<size_t>(kind)); }

bool PickleNode::boolean() const { return get_as<bool>(*this, "a bool"); }
int64_t PickleNode::integer() const { return get_as<int64_t>(*this, "an int"); }
double PickleNode::number() const {
  return kind == PickleKind::kInt ? static_cast<double>(integer()) : get_as<double>(*this, "a number");
}
const std::string& PickleNode::text() const { return behind<std::string>(*this, "text"); }
const PickleItems& PickleNode::items() const { return behind<PickleItems>(*this, "a list or a tuple"); }
const PickleDict& PickleNode::dict() const { return behind<PickleDict>(*this, "a dict"); }
PickleItems& PickleNode::own_items() { return made_behind<PickleItems>(*this, "a list or a tuple"); }
PickleDict& PickleNode::own_dict() { return made_behind<PickleDict>(*this, "a dict"); }
std::complex<double> PickleNode::complex() const { return behind<std::complex<double>>(*this, "a complex"); }
const PickleTensor& PickleNode::tensor() const { return *get_as<std::unique_ptr<PickleTensor>>(*this, "a tensor"); }
const PickleArray& PickleNode::array() const { return *get_as<std::unique_ptr<PickleArray>>(*this, "a numpy array"); }
const PickleObject& PickleNode::object() const { return *get_as<std::unique_ptr<PickleObject>>(*this, "an object"); }
const DtypeFacts& PickleNode::dtype() const { return *get_as<const DtypeFacts*>(*this, "a torch.dtype"); }

const PickleNode* PickleNode::find(std::string_view key) const {
  for (const auto& [name, value] : dict().items) {
    if (name->is(PickleKind::kText) && name->text() == key) return value;
  }
  return nullptr;
}

PickleNode* PickleTree::make(PickleKind kind, PickleNode::Data data) {
  return &nodes_.emplace_back(PickleNode{.kind = kind, .data = std::move(data)});
}

PickleNode* PickleTree::make(PickleKind kind, PickleItems items) {
  return make(kind, items.empty() ? nullptr : std::make_unique<PickleItems>(std::move(items)));
}

PickleNode* PickleTree::dict(PicklePairs items, PickleKind kind) {
  PickleNode* node = make(kind, std::unique_ptr<PickleDict>());
  if (!items.empty()) node->own_dict().items = std::move(items);
  return node;
}

PickleNode* PickleTree::key(const std::string& text) {
  PickleNode*& node = keys_[text];
  if (node == nullptr) node = this->text(text);
  return node;
}

PickleNode* PickleTree::tensor(PickleTensor value) {
  return make(PickleKind::kTensor, std::make_unique<PickleTensor>(std::move(value)));
}

PickleNode* PickleTree::array(PickleArray value) {
  return make(PickleKind::kArray, std::make_unique<PickleArray>(std::move(value)));
}

std::string big_integer_text(const std::string& little_endian) {
  std::vector<uint8_t> bytes(little_endian.begin(), little_endian.end());
  const bool negative = !bytes.empty() && (bytes.back() & 0x80) != 0;
  if (negative) {  // -x is ~x + 1
    int carry = 1;
    for (auto& byte : bytes) {
      const int sum = static_cast<uint8_t>(~byte) + carry;
      byte = static_cast<uint8_t>(sum);
      carry = sum >> 8;
    }
  }
  std::string digits;
  while (!bytes.empty()) {
    int remainder = 0;
    for (auto byte = bytes.rbegin(); byte != bytes.rend(); ++byte) {
      const int value = remainder * 256 + *byte;
      *byte = static_cast<uint8_t>(value / 10);
      remainder = value % 10;
    }
    digits.push_back(static_cast<char>('0' + remainder));
    while (!bytes.empty() && bytes.back() == 0) bytes.pop_back();
  }
  if (digits.empty()) return "0";
  if (negative) digits.push_back('-');
  std::reverse(digits.begin(), digits.end());
  return digits;
}

}  // namespace accelerate::detail
