#include <accelerate/core/error.h>

#include <array>
#include <map>
#include <set>
#include <unordered_map>

#include "checkpoint_files/distributed_metadata.h"
#include "core/escaped.h"
#include "formats/pickle_reader.h"

namespace accelerate::detail {
namespace {

/// The classes in `.metadata`. They become plain objects with fields; no code of theirs is run. Before torch 2.3 the properties
/// of a tensor were those of a ShardedTensor. Python 3.11.0 to 3.11.3 write members of enumerations as a call of getattr.
constexpr std::array<std::string_view, 16> kDistributedClasses = {
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
    "builtins.getattr",
    "pathlib.PosixPath",
    "pathlib.WindowsPath",
    "pathlib.PurePosixPath",
    "pathlib._local.PosixPath",
};

// What a pickle says once may be referred to again and again, so what is copied of it is short, or counted.
constexpr size_t kMostDimensions = 64;  // as in torch
constexpr size_t kLongestFileName = 255;

class MetadataParser {
 public:
  MetadataParser(std::string_view bytes, const std::string& file, MetadataScope scope)
      : file_(file),
        scope_(scope),
        sizes_left_(kMostDimensions + 2 * bytes.size()),
        tree_(read_pickle(bytes, file, {.objects = kDistributedClasses})) {}

  DistributedMetadata parse() {
    try {
      const PickleNode& root = *tree_.root;
      if (const PickleNode& paths = field(root, "planner_data"); paths.is_dict()) {
        for (const auto& [name, path] : paths.dict().items) paths_.emplace(name->text(), path);
      }
      for (const auto& [index, info] : field(root, "storage_data").dict().items) add_place(*index, *info);
      for (const auto& [name, description] : field(root, "state_dict_metadata").dict().items) add(name->text(), *description);
      return std::move(parsed_);
    } catch (const PickleKindError& error) {
      fail(error.what());
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(escaped(file_) +
                          " does not describe a readable distributed checkpoint: " + escaped(what, kLongestQuote) + ".");
  }

  const PickleNode* find_field(const PickleNode& object, std::string_view name) const {
    const PickleNode* state = object.is(PickleKind::kObject) ? object.object().state : nullptr;
    return state != nullptr && state->is_dict() ? state->find(name) : nullptr;
  }
  /// A field of an object, which must be there.
  const PickleNode& field(const PickleNode& object, std::string_view name) const {
    const PickleNode* found = find_field(object, name);
    if (found == nullptr) fail("an object has no field " + std::string(name));
    return *found;
  }

  uint64_t position(const std::string& tensor, const PickleNode& node, std::string_view name) const {
    const int64_t number = field(node, name).integer();
    if (number < 0) fail("a chunk of " + tensor + " has the " + std::string(name) + " " + std::to_string(number));
    return static_cast<uint64_t>(number);
  }

  std::vector<int64_t> sizes_of(const PickleNode& node) {
    std::vector<int64_t> sizes;
    if (node.is(PickleKind::kNone)) return sizes;
    if (node.items().size() > kMostDimensions) fail("a tensor has " + std::to_string(node.items().size()) + " dimensions");
    if (node.items().size() > sizes_left_) fail("it refers to the same sizes over and over");
    sizes_left_ -= node.items().size();
    for (const PickleNode* item : node.items()) sizes.push_back(item->integer());
    return sizes;
  }

  void add_place(const PickleNode& index, const PickleNode& info) {
    const PickleNode* offset = find_field(index, "offset");
    const std::string& name = field(index, "fqn").text();
    if (!places_.try_emplace({name, offset != nullptr ? sizes_of(*offset) : std::vector<int64_t>()}, &info).second)
      fail("two chunks of " + name + " have the same offset");
  }

  StoredPlace place_of(const std::string& name, const std::vector<int64_t>& offsets) const {
    const auto found = places_.find({name, offsets});
    if (found == places_.end()) fail("a chunk of " + name + " is missing from the storage metadata");
    const PickleNode& info = *found->second;
    const std::string& file = field(info, "relative_path").text();
    const PickleNode* transforms = find_field(info, "transform_descriptors");
    if (transforms != nullptr && !transforms->is(PickleKind::kNone)) fail(name + " is compressed or encrypted");
    if (file.empty() || file.size() > kLongestFileName || file.find_first_of(std::string_view("/\0", 2)) != std::string::npos ||
        file == "." || file == "..") {
      fail("a chunk of " + name + " is said to lie in '" + file + "', which is not the name of a file beside it");
    }
    return {file, position(name, info, "offset"), position(name, info, "length")};
  }

  StatePath path_of(const std::string& name) const {
    const auto known = paths_.find(name);
    if (known == paths_.end()) return {name};
    StatePath path;
    size_t length = 0;
    for (const PickleNode* key : known->second->items()) {
      length += 1 + (key->is(PickleKind::kText) ? key->text().size() : 0);
      if (length > name.size() + 1) fail(name + " has a path that is longer than its name");
      if (key->is(PickleKind::kInt)) {
        path.emplace_back(key->integer());
      } else {
        path.emplace_back(key->text());
      }
    }
    if (path.empty()) fail(name + " has an empty path");
    return path;
  }

  void add(const std::string& name, const PickleNode& description) {
    const std::string_view type = description.is(PickleKind::kObject) ? description.object().name : "";
    if (type.ends_with(".BytesStorageMetadata")) {
      parsed_.values.push_back({name, path_of(name), place_of(name, {})});
    } else if (type.ends_with(".TensorStorageMetadata")) {
      add_tensor(name, description);
    } else {
      fail(name + " is neither a tensor nor plain data");
    }
  }

  void add_tensor(const std::string& name, const PickleNode& description) {
    DistributedTensor tensor{name, path_of(name), &dtype_of(name, description), sizes_of(field(description, "size"))};
    auto bytes = static_cast<uint64_t>(tensor.dtype->bytes);
    for (const int64_t size : tensor.shape) {
      if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) fail(name + " has an invalid shape");
    }
    if (bytes > INT64_MAX) fail(name + " has an invalid shape");
    std::set<std::vector<int64_t>> begun;
    for (const PickleNode* piece : field(description, "chunks").items()) {
      TensorBox box{sizes_of(field(*piece, "offsets")), sizes_of(field(*piece, "sizes"))};
      const bool inside = box.offsets.size() == tensor.shape.size() && box.sizes.size() == tensor.shape.size();
      if (inside && box.elements() == 0) continue;  // a rank that has no rows of a small tensor
      if (!begun.insert(box.offsets).second) fail(name + " has two chunks with the same offset");
      StoredPlace place = place_of(name, box.offsets);
      tensor.chunks.push_back({std::move(box), std::move(place)});
    }
    const std::string problem = cover_problem(tensor);
    if (!problem.empty() && (scope_ == MetadataScope::kWhole || !is_partial(tensor))) fail(name + " " + problem);
    for (const auto& chunk : tensor.chunks) {
      if (chunk.box.elements() * static_cast<uint64_t>(tensor.dtype->bytes) > chunk.place.length)
        fail("a chunk of " + name + " has more bytes than its place in " + chunk.place.file);
    }
    parsed_.tensors.push_back(std::move(tensor));
  }

  /// Are the chunks of a rank inside of the tensor? Whether those of several ranks overlap is seen when they are joined.
  static bool is_partial(const DistributedTensor& tensor) {
    for (const auto& chunk : tensor.chunks) {
      if (cover_of(tensor.shape, {&chunk.box, 1}) == BoxCover::kOutside) return false;
    }
    return true;
  }

  const DtypeFacts& dtype_of(const std::string& name, const PickleNode& description) const {
    const PickleNode& properties = field(description, "properties");
    const PickleNode* state = properties.is(PickleKind::kObject) ? properties.object().state : nullptr;
    if (state == nullptr || !state->is_row() || state->items().empty()) fail(name + " has no dtype");
    return state->items()[0]->dtype();
  }

  std::string file_;
  MetadataScope scope_;
  size_t sizes_left_;
  PickleTree tree_;
  std::unordered_map<std::string_view, const PickleNode*> paths_;
  std::map<std::pair<std::string_view, std::vector<int64_t>>, const PickleNode*> places_;
  DistributedMetadata parsed_;
};

}  // namespace

DistributedMetadata read_distributed_metadata(std::string_view bytes, const std::string& file, MetadataScope scope) {
  return MetadataParser(bytes, file, scope).parse();
}

}  // namespace accelerate::detail
