#include "checkpoint_files/inspected_values.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "core/utf8.h"
#include "formats/elements.h"

namespace accelerate::detail {
namespace {

using Kind = PickleKind;

constexpr size_t kLongestText = 60;    // of a value; the rest is left out
constexpr size_t kLongestNumber = 64;  // bytes of an int that is shown

std::string shown_float(double value) {
  const DtypeFacts& dtype = *find_dtype("float64");
  return element_text(dtype, value);
}

/// The text of a value that has no parts.
std::string plain_text(const PickleNode& node) {
  switch (node.kind) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return node.boolean() ? "True" : "False";
    case Kind::kInt:
      return std::to_string(node.integer());
    case Kind::kBigInt:
      return node.text().size() <= kLongestNumber ? big_integer_text(node.text()) : "...";
    case Kind::kFloat:
      return shown_float(node.number());
    case Kind::kComplex:
      return element_text(*find_dtype("complex128"), node.complex());
    case Kind::kText:
    case Kind::kDevice:
    case Kind::kLayout:
      return std::string(utf8_prefix(node.text(), kLongestText));
    case Kind::kDtype:
      return "torch." + std::string(node.dtype().name);
    case Kind::kBytes:
    case Kind::kByteArray:
      return std::to_string(node.text().size()) + " bytes";
    default:
      return {};
  }
}

bool is_number(const PickleNode* node) {
  return node->is(Kind::kInt) || node->is(Kind::kFloat) || node->is(Kind::kBool) || node->is(Kind::kBigInt);
}

std::string without_article(std::string_view kind) {
  const size_t blank = kind.find(' ');
  return std::string(blank == std::string_view::npos ? kind : kind.substr(blank + 1));
}

uint64_t count_of(const std::vector<int64_t>& shape) {
  uint64_t count = 1;
  for (const int64_t size : shape) count *= static_cast<uint64_t>(size);
  return count;
}

class ItemCollector {
 public:
  explicit ItemCollector(const TorchFile* file) : file_(file) {}

  std::vector<InspectedItem> items;

  void visit(const std::string& name, const PickleNode& node) {
    if (node.is(Kind::kTensor)) {
      add_tensor(name, node.tensor());
    } else if (node.is(Kind::kArray)) {
      add_array(name, node.array());
    } else if (node.is_dict() && !node.dict().items.empty()) {
      for (const auto& [key, value] : node.dict().items) visit(below(name, plain_text(*key)), *value);
    } else if (node.is_row()) {
      visit_parts(name, node, node.items());
    } else {
      const std::string type =
          node.is_dict() ? "empty " + without_article(to_string(node.kind)) : without_article(to_string(node.kind));
      InspectedItem item{.name = name, .type = type};
      if (!node.is_dict()) item.values = {plain_text(node)};
      item.more = node.is(Kind::kText) && node.text().size() > kLongestText;
      items.push_back(std::move(item));
    }
  }

 private:
  static std::string below(const std::string& name, const std::string& key) { return name.empty() ? key : name + "." + key; }

  void visit_parts(const std::string& name, const PickleNode& node, const PickleItems& parts) {
    const bool numbers = std::all_of(parts.begin(), parts.end(), is_number);
    if (!numbers) {
      for (size_t i = 0; i < parts.size(); ++i) visit(below(name, std::to_string(i)), *parts[i]);
      return;
    }
    InspectedItem item{.name = name, .type = without_article(to_string(node.kind)) + " of " + std::to_string(parts.size())};
    for (const PickleNode* part : parts) {
      if (item.values.size() == kMostShownElements) break;
      item.values.push_back(plain_text(*part));
    }
    item.more = parts.size() > item.values.size();
    items.push_back(std::move(item));
  }

  void add_tensor(const std::string& name, const PickleTensor& tensor) {
    InspectedItem item{.name = name, .type = std::string(tensor.dtype->name), .shape = tensor.sizes};
    item.bytes = count_of(tensor.sizes) * static_cast<uint64_t>(tensor.dtype->bytes);
    if (tensor.device == "meta") {
      item.note = "on the meta device: no elements";
    } else {
      const auto [first, is_new] = owners_.try_emplace(tensor.storage, name);
      if (!is_new) item.note = "shares its storage with " + first->second;
      const uint64_t start = file_->storage(tensor.storage).offset + static_cast<uint64_t>(tensor.offset * tensor.dtype->bytes);
      show_first_elements(file_->source(), *tensor.dtype, tensor.sizes, tensor.strides, start, item);
    }
    items.push_back(std::move(item));
  }

  void add_array(const std::string& name, const PickleArray& array) {
    InspectedItem item{.name = name, .type = "numpy " + array.dtype.substr(1), .shape = array.shape};
    item.bytes = array.bytes->text().size();
    items.push_back(std::move(item));
  }

  const TorchFile* file_;                                // nullptr where there are no tensors
  std::unordered_map<std::string, std::string> owners_;  // who showed a storage first
};

}  // namespace

void show_first_elements(const ByteSource& source, const DtypeFacts& dtype, const std::vector<int64_t>& shape,
                         const std::vector<int64_t>& strides, uint64_t offset, InspectedItem& item) {
  const uint64_t count = count_of(shape);
  for (uint64_t i = 0; i < std::min(count, kMostShownElements); ++i) {
    uint64_t place = i, rest = i;
    if (!strides.empty()) place = 0;
    for (size_t dimension = strides.size(); dimension-- > 0;) {
      const auto size = static_cast<uint64_t>(shape[dimension]);
      place += rest % size * static_cast<uint64_t>(strides[dimension]);
      rest /= size;
    }
    const std::string element =
        source.text(offset + place * static_cast<uint64_t>(dtype.bytes), static_cast<uint64_t>(dtype.bytes));
    item.values.push_back(element_text(dtype, read_element(dtype, element.data())));
  }
  item.more = count > item.values.size();
}

std::vector<InspectedItem> pickled_items(const TorchFile& file) {
  ItemCollector collector(&file);
  collector.visit("", file.root());
  return std::move(collector.items);
}

std::vector<InspectedItem> plain_items(const std::string& name, const PickleNode& value) {
  ItemCollector collector(nullptr);
  collector.visit(name, value);
  return std::move(collector.items);
}

}  // namespace accelerate::detail
