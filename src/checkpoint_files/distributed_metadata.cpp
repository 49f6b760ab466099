#include "checkpoint_files/distributed_metadata.h"

#include <accelerate/core/error.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_map>

#include "core/escaped.h"
#include "formats/pickle_writer.h"

namespace accelerate::detail {
namespace {

constexpr const char* kMetadataModule = "torch.distributed.checkpoint.metadata.";
/// The version of the format that torch 2.13 writes.
constexpr const char* kFormatVersion = "1.0.0";

/// Builds the objects that torch's own writer pickles.
class MetadataTree {
 public:
  std::string pickle(const DistributedMetadata& metadata) {
    PicklePairs described, paths, stored;
    for (const auto& tensor : metadata.tensors) {
      add_name(tensor.name, tensor.path, paths);
      described.push_back({tree_.key(tensor.name), describe(tensor)});
      for (size_t i = 0; i < tensor.chunks.size(); ++i) {
        PicklePairs index = {{tree_.key("fqn"), tree_.key(tensor.name)},
                             {tree_.key("index"), tree_.integer(static_cast<int64_t>(i))},
                             {tree_.key("offset"), size(tensor.chunks[i].box.offsets)}};
        stored.push_back({instance("MetadataIndex", std::move(index)), describe(tensor.chunks[i].place)});
      }
    }
    for (const auto& value : metadata.values) {
      add_name(value.name, value.path, paths);
      described.push_back({tree_.key(value.name), instance("BytesStorageMetadata", {})});
      PicklePairs index = {{tree_.key("fqn"), tree_.key(value.name)}, {tree_.key("index"), none_}};
      stored.push_back({instance("MetadataIndex", std::move(index)), describe(value.place)});
    }
    return write_pickle(*instance("Metadata", {{tree_.key("state_dict_metadata"), tree_.dict(std::move(described))},
                                               {tree_.key("planner_data"), tree_.dict(std::move(paths))},
                                               {tree_.key("storage_data"), tree_.dict(std::move(stored))},
                                               {tree_.key("storage_meta"), storage_meta()},
                                               {tree_.key("version"), tree_.text(kFormatVersion)}}));
  }

 private:
  PickleNode* object(const std::string& name, PickleObject object) {
    object.name = tree_.key(name)->text();
    return tree_.make(PickleKind::kObject, std::make_unique<PickleObject>(object));
  }
  PickleNode* instance(const char* name, PicklePairs fields, const std::string& module = kMetadataModule) {
    return object(module + name, {.state = fields.empty() ? nullptr : tree_.dict(std::move(fields))});
  }
  PickleNode* size(const std::vector<int64_t>& sizes) {
    return tree_.make(PickleKind::kSize, PickleItems(sizes.size(), [&](size_t i) { return tree_.integer(sizes[i]); }));
  }

  void add_name(const std::string& name, const StatePath& path, PicklePairs& paths) {
    if (!names_.insert(name).second)
      throw UsageError("A distributed checkpoint cannot hold two values called " + escaped(name, kLongestQuote) + ".");
    PickleItems keys;
    for (const auto& key : path) {
      const auto* text = std::get_if<std::string>(&key);
      keys.push_back(text != nullptr ? tree_.key(*text) : tree_.integer(std::get<int64_t>(key)));
    }
    paths.push_back({tree_.key(name), tree_.tuple(std::move(keys))});
  }

  /// The same for all tensors of a dtype, as where it was and whether it wants gradients is the reader's matter.
  PickleNode* properties(const DtypeFacts& dtype) {
    PickleNode*& known = properties_[&dtype];
    if (known != nullptr) return known;
    if (layout_ == nullptr) {
      layout_ = tree_.make(PickleKind::kLayout, std::string("torch.strided"));
      contiguous_ = object(std::string(kMetadataModule) + "_MEM_FORMAT_ENCODING",
                           {.arguments = tree_.tuple({tree_.integer(0)}), .called = true});
    }
    PickleNode* state =
        tree_.tuple({tree_.make(PickleKind::kDtype, &dtype), layout_, tree_.boolean(false), contiguous_, tree_.boolean(false)});
    return known = object(std::string(kMetadataModule) + "TensorProperties", {.state = state});
  }

  PickleNode* describe(const DistributedTensor& tensor) {
    PickleItems chunks;
    for (const auto& chunk : tensor.chunks) {
      chunks.push_back(instance("ChunkStorageMetadata",
                                {{tree_.key("offsets"), size(chunk.box.offsets)}, {tree_.key("sizes"), size(chunk.box.sizes)}}));
    }
    return instance("TensorStorageMetadata", {{tree_.key("properties"), properties(*tensor.dtype)},
                                              {tree_.key("size"), size(tensor.shape)},
                                              {tree_.key("chunks"), tree_.list(std::move(chunks))}});
  }

  PickleNode* describe(const StoredPlace& place) {
    return instance("_StorageInfo",
                    {{tree_.key("relative_path"), tree_.key(place.file)},
                     {tree_.key("offset"), tree_.integer(static_cast<int64_t>(place.offset))},
                     {tree_.key("length"), tree_.integer(static_cast<int64_t>(place.length))}},
                    "torch.distributed.checkpoint.filesystem.");
  }

  /// Paths and random ids that differ between equal checkpoints are left out.
  PickleNode* storage_meta() {
    return instance("StorageMeta", {{tree_.key("checkpoint_id"), none_},
                                    {tree_.key("save_id"), none_},
                                    {tree_.key("load_id"), none_},
                                    {tree_.key("modules"), tree_.list()}});
  }

  PickleTree tree_;
  PickleNode* none_ = tree_.none();
  PickleNode* layout_ = nullptr;
  PickleNode* contiguous_ = nullptr;
  std::unordered_map<const DtypeFacts*, PickleNode*> properties_;
  std::set<std::string> names_;
};

[[noreturn]] void ranks_disagree(const std::string& name, const char* on) {
  throw UsageError("The ranks that save " + escaped(name, kLongestQuote) + " disagree on its " + on + ".");
}

class MetadataJoin {
 public:
  void add(const DistributedTensor& tensor) {
    const auto [place, is_new] = tensors_.try_emplace(tensor.name, joined_.tensors.size());
    if (is_new) joined_.tensors.push_back({tensor.name, tensor.path, tensor.dtype, tensor.shape});
    DistributedTensor& whole = joined_.tensors[place->second];
    if (whole.dtype != tensor.dtype) ranks_disagree(tensor.name, "dtype");
    if (whole.shape != tensor.shape) ranks_disagree(tensor.name, "shape");
    if (whole.path != tensor.path) ranks_disagree(tensor.name, "path");
    for (const auto& chunk : tensor.chunks) {
      if (boxes_.emplace(place->second, chunk.box.offsets, chunk.box.sizes).second) whole.chunks.push_back(chunk);
    }
  }

  void add(const DistributedValue& value) {
    const auto [place, is_new] = values_.try_emplace(value.name, joined_.values.size());
    if (is_new) joined_.values.push_back(value);
    if (joined_.values[place->second].path != value.path) ranks_disagree(value.name, "path");
  }

  DistributedMetadata finish() {
    for (const auto& tensor : joined_.tensors) {
      if (const std::string problem = cover_problem(tensor); !problem.empty())
        throw UsageError("The tensor " + escaped(tensor.name, kLongestQuote) + " " + problem + ".");
      if (values_.contains(tensor.name))
        throw UsageError("The ranks disagree on whether " + escaped(tensor.name, kLongestQuote) + " is a tensor.");
    }
    return std::move(joined_);
  }

 private:
  DistributedMetadata joined_;
  std::unordered_map<std::string, size_t> tensors_, values_;
  std::set<std::tuple<size_t, std::vector<int64_t>, std::vector<int64_t>>> boxes_;
};

}  // namespace

std::string flattened_name(const StatePath& path) {
  std::string name;
  for (const auto& key : path) {
    if (&key != path.data()) name += '.';
    const auto* text = std::get_if<std::string>(&key);
    name += text != nullptr ? *text : std::to_string(std::get<int64_t>(key));
  }
  return name;
}

std::string distributed_file_name(int rank) { return "__" + std::to_string(rank) + "_0.distcp"; }

std::string cover_problem(const DistributedTensor& tensor) {
  std::vector<TensorBox> boxes;
  for (const auto& chunk : tensor.chunks) boxes.push_back(chunk.box);
  switch (cover_of(tensor.shape, boxes)) {
    case BoxCover::kExact:
      return {};
    case BoxCover::kHole:
      return "has elements that no chunk holds";
    case BoxCover::kOverlap:
      return "has chunks that overlap";
    case BoxCover::kOutside:
      return "has a chunk that lies outside of it";
    case BoxCover::kUnknown:
      break;
  }
  return "is cut along more than 8 dimensions, which is not supported";
}

std::string write_distributed_metadata(const DistributedMetadata& metadata) { return MetadataTree().pickle(metadata); }

DistributedMetadata joined_metadata(const std::vector<DistributedMetadata>& parts) {
  MetadataJoin join;
  for (const auto& part : parts) {
    for (const auto& tensor : part.tensors) join.add(tensor);
    for (const auto& value : part.values) join.add(value);
  }
  return join.finish();
}

}  // namespace accelerate::detail
