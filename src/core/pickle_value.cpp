#include "core/pickle_value.h"

#include <algorithm>
#include <array>

namespace accelerate {
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

}  // namespace

std::string_view to_string(PickleKind kind) { return kKindNames.at(static_cast<size_t>(kind)); }

bool PickleNode::boolean() const { return get_as<bool>(*this, "a bool"); }
int64_t PickleNode::integer() const { return get_as<int64_t>(*this, "an int"); }
double PickleNode::number() const {
  return kind == PickleKind::kInt ? static_cast<double>(integer()) : get_as<double>(*this, "a number");
}
const std::string& PickleNode::text() const { return get_as<std::string>(*this, "text"); }
const PickleItems& PickleNode::items() const { return get_as<PickleItems>(*this, "a list or a tuple"); }
const PickleDict& PickleNode::dict() const { return get_as<PickleDict>(*this, "a dict"); }
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
  return &nodes_.emplace_back(PickleNode{kind, std::move(data)});
}

PickleNode* PickleTree::dict(PicklePairs items, PickleKind kind) {
  PickleDict dict;
  dict.items = std::move(items);
  return make(kind, std::move(dict));
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

}  // namespace accelerate
