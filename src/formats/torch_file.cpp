#include "formats/torch_file.h"

#include <accelerate/core/error.h>

#include <algorithm>
#include <unordered_set>

#include "core/crc32.h"
#include "core/escaped.h"
#include "formats/pickle_writer.h"

namespace accelerate::detail {
namespace {

constexpr std::string_view kLegacyMagic("\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);
constexpr int64_t kLegacyProtocol = 1001;
constexpr uint64_t kFirstWindow = 1 << 20;

[[noreturn]] void bad_torch_file(const ByteSource& source, const std::string& what) {
  throw CheckpointError(source.name() + " is not a valid torch file: " + escaped(what, kLongestQuote) + ".");
}

class TensorCollector {
 public:
  std::vector<const PickleTensor*> found;

  void visit(const PickleNode& node) {
    if (node.is(PickleKind::kTensor)) {
      if (seen_.insert(&node).second) found.push_back(&node.tensor());
    } else if (node.is_row()) {
      if (!seen_.insert(&node).second) return;
      for (const PickleNode* item : node.items()) visit(*item);
    } else if (node.is_dict()) {
      if (!seen_.insert(&node).second) return;
      for (const auto& [key, value] : node.dict().items) visit(*value);
      if (node.dict().attributes != nullptr) visit(*node.dict().attributes);
    } else if (node.is(PickleKind::kObject)) {
      if (!seen_.insert(&node).second) return;
      for (const PickleNode* part : {node.object().arguments, node.object().state}) {
        if (part != nullptr) visit(*part);
      }
    }
  }

 private:
  std::unordered_set<const PickleNode*> seen_;
};

/// Storages of the legacy format count elements; those without a typed class count bytes.
uint64_t legacy_element_size(const PickleTensor& tensor) {
  return tensor.untyped || tensor.dtype->storage.empty() ? 1 : static_cast<uint64_t>(tensor.dtype->bytes);
}

}  // namespace

std::vector<const PickleTensor*> tensors_below(const PickleNode& root) {
  TensorCollector collector;
  collector.visit(root);
  return std::move(collector.found);
}

uint64_t tensor_extent(const PickleTensor& tensor, const std::string& file) {
  if (std::find(tensor.sizes.begin(), tensor.sizes.end(), 0) != tensor.sizes.end()) return 0;
  int64_t last = tensor.offset, bytes = 0;
  bool countable = true;
  for (size_t i = 0; i < tensor.sizes.size() && countable; ++i) {
    int64_t reach = 0;
    countable =
        !__builtin_mul_overflow(tensor.sizes[i] - 1, tensor.strides[i], &reach) && !__builtin_add_overflow(last, reach, &last);
  }
  countable = countable && !__builtin_add_overflow(last, 1, &last) && !__builtin_mul_overflow(last, tensor.dtype->bytes, &bytes);
  if (!countable) throw CheckpointError(file + " has a tensor whose size overflows.");
  return static_cast<uint64_t>(bytes);
}

TorchFile::TorchFile(const ByteSource& source, const PickleRules& rules) : source_(source) {
  if (source.size() == 0) bad_torch_file(source, "it is empty");
  looks_like_zip(source) ? read_archive(rules) : read_legacy(rules);
  for (size_t i = 0; i < storages_.size(); ++i) {
    if (!places_.emplace(storages_[i].key, i).second) bad_torch_file(source, "it has two storages called " + storages_[i].key);
  }
  check_tensors();
}

void TorchFile::read_archive(const PickleRules& rules) {
  zip_ = std::make_unique<ZipReader>(source_);
  if (zip_->entries().empty()) bad_torch_file(source_, "its archive is empty");
  const std::string& first = zip_->entries().front().name;
  folder_ = first.substr(0, first.find('/')) + "/";
  const ZipEntry* pickle = zip_->find(folder_ + "data.pkl");
  if (pickle == nullptr) bad_torch_file(source_, "its archive has no data.pkl");
  const ZipEntry* order = zip_->find(folder_ + "byteorder");
  if (order != nullptr && order->size < 16 && zip_->read(*order) != "little")
    bad_torch_file(source_, "it is big-endian. Load and save it in Python first");
  const std::string bytes = zip_->read(*pickle);
  tree_ = read_pickle(bytes, source_.name(), rules);
  const std::string data = folder_ + "data/";
  for (const ZipEntry& entry : zip_->entries()) {
    if (entry.name.starts_with(data)) storages_.push_back({entry.name.substr(data.size()), entry.offset, entry.size});
  }
}

/// The legacy format is a sequence of pickles of unknown length, then raw bytes: so a window grows until the pickle fits.
PickleTree TorchFile::next_pickle(uint64_t& position, const PickleRules& rules) const {
  for (uint64_t window = kFirstWindow;; window *= 4) {
    const uint64_t size = std::min(window, source_.size() - position);
    const std::string bytes = source_.text(position, size);
    try {
      size_t used = 0;
      PickleTree tree = read_pickle(bytes, source_.name(), rules, &used);
      position += used;
      return tree;
    } catch (const PickleCutShort&) {
      if (size == source_.size() - position) throw;
    }
  }
}

void TorchFile::read_legacy(const PickleRules& rules) {
  uint64_t position = 0;
  const PickleTree magic = next_pickle(position, {});
  if (!magic.root->is(PickleKind::kBigInt) || magic.root->text() != kLegacyMagic)
    bad_torch_file(source_, "it is neither a zip archive nor in torch's legacy format");
  const PickleTree protocol = next_pickle(position, {});
  if (!protocol.root->is(PickleKind::kInt) || protocol.root->integer() != kLegacyProtocol)
    bad_torch_file(source_, "its version is unknown");
  const PickleTree system = next_pickle(position, {});
  const PickleNode* little = system.root->is_dict() ? system.root->find("little_endian") : nullptr;
  if (little == nullptr || !little->is(PickleKind::kBool) || !little->boolean())
    bad_torch_file(source_, "it is not little-endian. Load and save it in Python first");
  tree_ = next_pickle(position, rules);
  const PickleTree keys = next_pickle(position, {});
  if (!keys.root->is(PickleKind::kList)) bad_torch_file(source_, "it does not list its storages");
  std::unordered_map<std::string, uint64_t> element_sizes;
  for (const PickleTensor* tensor : tensors_below(root())) element_sizes[tensor->storage] = legacy_element_size(*tensor);
  for (const PickleNode* key : keys.root->items()) {
    if (!key->is(PickleKind::kText)) bad_torch_file(source_, "it has a storage without a name");
    const auto element = element_sizes.find(key->text());
    if (element == element_sizes.end()) bad_torch_file(source_, "no tensor uses its storage " + escaped(key->text(), 80));
    uint64_t count = 0, size = 0;
    if (source_.size() - position < sizeof(count)) bad_torch_file(source_, "it is truncated before its storages");
    source_.read(&count, sizeof(count), position);
    position += sizeof(count);
    if (__builtin_mul_overflow(count, element->second, &size) || size > source_.size() - position)
      bad_torch_file(source_, "it is truncated in storage " + escaped(key->text(), 80));
    storages_.push_back({key->text(), position, size});
    position += size;
  }
}

void TorchFile::check_tensors() const {
  for (const PickleTensor* tensor : tensors_below(root())) {
    if (tensor->device == "meta") continue;
    const TorchStorage& where = storage(tensor->storage);
    uint64_t claimed = 0;
    if (__builtin_mul_overflow(tensor->storage_elements, static_cast<uint64_t>(tensor->dtype->bytes), &claimed) ||
        claimed > where.size) {
      bad_torch_file(source_, "storage " + where.key + " has " + std::to_string(where.size) + " bytes, too few for its " +
                                  std::to_string(tensor->storage_elements) + " elements");
    }
    if (tensor_extent(*tensor, source_.name()) > where.size)
      bad_torch_file(source_, "a tensor extends past the end of storage " + where.key);
  }
}

const TorchStorage& TorchFile::storage(const std::string& key) const {
  const auto place = places_.find(key);
  if (place == places_.end()) bad_torch_file(source_, "it has no storage " + key.substr(0, 80) + ", which a tensor names");
  return storages_[place->second];
}

void TorchFile::read(const TorchStorage& storage, void* bytes) const {
  source_.read(bytes, storage.size, storage.offset);
  require_sound(storage, bytes);
}

void TorchFile::require_sound(const TorchStorage& storage, const void* bytes) const {
  if (zip_ != nullptr && !source_.is_verified()) require_crc(storage, crc32(0, bytes, storage.size));
}

void TorchFile::require_crc(const TorchStorage& storage, uint32_t crc) const {
  if (zip_ != nullptr) zip_->require_crc(*zip_->find(folder_ + "data/" + storage.key), crc);
}

void TorchFile::verify(const TorchStorage& storage) const {
  if (zip_ != nullptr) zip_->verify(*zip_->find(folder_ + "data/" + storage.key));
}

std::string TorchFile::elements(const PickleTensor& tensor) const {
  const TorchStorage& where = storage(tensor.storage);
  std::string bytes(where.size, '\0');
  read(where, bytes.data());
  const auto element = static_cast<size_t>(tensor.dtype->bytes);
  if (is_contiguous(tensor)) {
    const auto count = static_cast<size_t>(tensor_extent(tensor, source_.name())) - static_cast<size_t>(tensor.offset) * element;
    return tensor_extent(tensor, source_.name()) == 0 ? "" : bytes.substr(static_cast<size_t>(tensor.offset) * element, count);
  }
  std::string gathered;
  std::vector<int64_t> at(tensor.sizes.size(), 0);
  if (tensor_extent(tensor, source_.name()) == 0) return gathered;
  for (;;) {
    int64_t place = tensor.offset;
    for (size_t i = 0; i < at.size(); ++i) place += at[i] * tensor.strides[i];
    gathered.append(bytes, static_cast<size_t>(place) * element, element);
    size_t dimension = at.size();
    while (dimension > 0 && ++at[dimension - 1] == tensor.sizes[dimension - 1]) at[--dimension] = 0;
    if (dimension == 0) return gathered;
  }
}

bool is_contiguous(const PickleTensor& tensor) {
  int64_t stride = 1;
  for (size_t i = tensor.sizes.size(); i-- > 0;) {
    if (tensor.sizes[i] == 0) return true;
    if (tensor.sizes[i] != 1 && tensor.strides[i] != stride) return false;
    stride *= tensor.sizes[i];
  }
  return true;
}

TorchFileWriter::TorchFileWriter(ByteSink& sink, const std::string& archive, const PickleNode& root) : zip_(sink, archive) {
  zip_.add("data.pkl", write_pickle(root));
  zip_.add(".format_version", "1");
  zip_.add(".storage_alignment", "64");
  zip_.add("byteorder", "little");
}

void TorchFileWriter::begin(const std::string& key, uint64_t size) { zip_.begin("data/" + key, size); }

void TorchFileWriter::finish() {
  zip_.add("version", "3\n");
  zip_.add(".data/serialization_id", zip_.fingerprint());
  zip_.finish();
}

std::string torch_archive_name(std::string_view path) {
  // Python opens a file whose name is not ASCII by itself, and its archive then has this name.
  if (std::any_of(path.begin(), path.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; })) return "archive";
  path.remove_prefix(std::min(path.size(), path.find_last_of("/\\") + 1));
  const std::string name(path.substr(0, path.rfind('.')));
  return name.empty() ? "archive" : name;
}

}  // namespace accelerate::detail
