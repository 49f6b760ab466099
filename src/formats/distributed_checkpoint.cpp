#include <accelerate/core/error.h>

#include <algorithm>
#include <array>
#include <map>

#include "core/escaped.h"
#include "core/file.h"
#include "formats/mergeable_weights.h"
#include "formats/torch_file.h"

namespace accelerate {

using namespace detail;
namespace {

/// The classes in `.metadata`. They become plain objects with fields; no code of theirs is run.
constexpr std::array<std::string_view, 13> kDistributedClasses = {
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "pathlib.PosixPath",
    "pathlib.WindowsPath",
    "pathlib.PurePosixPath",
    "pathlib._local.PosixPath",
};

/// A shard of a tensor: its offsets in the tensor, and the location of its torch.save file.
struct Chunk {
  std::vector<int64_t> offsets, sizes;
  const InputFile* file = nullptr;
  uint64_t begin = 0, length = 0;
};

/// What must outlive the tensors: the description and the open files.
struct DistributedFolder {
  explicit DistributedFolder(const std::filesystem::path& path)
      : folder(path),
        source(path / ".metadata"),
        tree(read_pickle(source.text(0, source.size()), source.name(), {.objects = kDistributedClasses})) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(source.name() +
                          " does not describe a readable distributed checkpoint: " + escaped(what, kLongestQuote) + ".");
  }
  /// A field of an object, which must be there.
  const PickleNode& field(const PickleNode& object, std::string_view name) const {
    const PickleNode* state = object.is(PickleKind::kObject) ? object.object().state : nullptr;
    const PickleNode* found = state != nullptr && state->is_dict() ? state->find(name) : nullptr;
    if (found == nullptr) fail("an object has no field " + std::string(name));
    return *found;
  }
  const InputFile& open(const std::string& name) {
    if (name.empty() || name.find('/') != std::string::npos || name == "..") fail("it names the file '" + name + "'");
    auto& file = files[name];
    if (!file) file = std::make_unique<InputFile>(folder / name);
    return *file;
  }

  std::filesystem::path folder;
  InputFile source;
  PickleTree tree;
  std::map<std::string, std::unique_ptr<InputFile>> files;
};

std::vector<int64_t> sizes_of(const PickleNode& node) {
  std::vector<int64_t> sizes;
  if (node.is(PickleKind::kNone)) return sizes;
  for (const PickleNode* item : node.items()) sizes.push_back(item->integer());
  return sizes;
}

using ChunkPlaces = std::map<std::pair<std::string, std::vector<int64_t>>, const PickleNode*>;

ChunkPlaces chunk_places(const DistributedFolder& folder) {
  ChunkPlaces places;
  for (const auto& [index, info] : folder.field(*folder.tree.root, "storage_data").dict().items) {
    places[{folder.field(*index, "fqn").text(), sizes_of(folder.field(*index, "offset"))}] = info;
  }
  return places;
}

/// Copies the elements of a shard, row by row, to their places in the tensor.
void place_chunk(std::string& whole, const std::vector<int64_t>& shape, const Chunk& chunk, const std::string& elements,
                 size_t element) {
  if (elements.empty()) return;
  const size_t dimensions = shape.size();
  const size_t run = dimensions == 0 ? element : static_cast<size_t>(chunk.sizes.back()) * element;
  std::vector<int64_t> at(dimensions, 0);
  for (size_t done = 0; done < elements.size(); done += run) {
    int64_t place = 0;
    for (size_t i = 0; i < dimensions; ++i) place = place * shape[i] + chunk.offsets[i] + at[i];
    whole.replace(static_cast<size_t>(place) * element, run, elements, done, run);
    for (size_t i = dimensions; i-- > 1;) {
      if (++at[i - 1] < chunk.sizes[i - 1]) break;
      at[i - 1] = 0;
    }
  }
}

std::string chunk_elements(const Chunk& chunk, const DtypeFacts& dtype, const std::string& name) {
  const SectionSource section(*chunk.file, chunk.begin, chunk.length);
  const TorchFile file(section);
  if (!file.root().is(PickleKind::kTensor) || file.root().tensor().dtype != &dtype || file.root().tensor().sizes != chunk.sizes)
    throw CheckpointError("A shard of " + escaped(name, kLongestQuote) + " in " + chunk.file->name() +
                          " does not match the .metadata file.");
  return file.elements(file.root().tensor());
}

/// Checks that the shards lie inside the tensor and have as many elements as it.
void require_whole(const DistributedFolder& folder, const MergeableTensor& tensor, const std::vector<Chunk>& chunks) {
  uint64_t bytes = 0;
  for (const Chunk& chunk : chunks) {
    uint64_t piece = static_cast<uint64_t>(tensor.dtype->bytes);
    if (chunk.sizes.size() != tensor.shape.size() || chunk.offsets.size() != tensor.shape.size())
      folder.fail("a shard of " + tensor.name + " has a different number of dimensions");
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      if (chunk.offsets[i] < 0 || chunk.sizes[i] < 0 || chunk.offsets[i] > tensor.shape[i] ||
          chunk.sizes[i] > tensor.shape[i] - chunk.offsets[i]) {
        folder.fail("a shard of " + tensor.name + " lies outside the tensor");
      }
      piece *= static_cast<uint64_t>(chunk.sizes[i]);
    }
    bytes += piece;
  }
  if (bytes != tensor.bytes) folder.fail("the shards of " + tensor.name + " do not cover the tensor");
}

uint64_t bytes_of(const DistributedFolder& folder, const MergeableTensor& tensor) {
  uint64_t bytes = static_cast<uint64_t>(tensor.dtype->bytes);
  for (const int64_t size : tensor.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes))
      folder.fail(tensor.name + " has an invalid size");
  }
  uint64_t available = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.folder)) {
    if (entry.is_regular_file()) available += entry.file_size();
  }
  if (bytes > available) folder.fail(tensor.name + " has more bytes than all files together");
  return bytes;
}

MergeableTensor distributed_tensor(const std::shared_ptr<DistributedFolder>& folder, const std::string& name,
                                   const std::string& key, const PickleNode& description, const ChunkPlaces& places) {
  const auto& properties = folder->field(description, "properties");
  if (!properties.is(PickleKind::kObject) || properties.object().state == nullptr || properties.object().state->items().empty())
    folder->fail(name + " has no dtype");
  MergeableTensor tensor{name, "", &properties.object().state->items()[0]->dtype(), sizes_of(folder->field(description, "size"))};
  tensor.safetensors_dtype = tensor.dtype->safetensors;
  tensor.bytes = bytes_of(*folder, tensor);
  std::vector<Chunk> chunks;
  for (const PickleNode* piece : folder->field(description, "chunks").items()) {
    Chunk chunk{sizes_of(folder->field(*piece, "offsets")), sizes_of(folder->field(*piece, "sizes"))};
    const auto place = places.find({key, chunk.offsets});
    if (place == places.end()) folder->fail("a shard of " + name + " is missing from the storage metadata");
    folder->field(*place->second, "relative_path");  // it has fields at all
    const PickleNode* transforms = place->second->object().state->find("transform_descriptors");
    if (transforms != nullptr && !transforms->is(PickleKind::kNone)) folder->fail(name + " is compressed or encrypted");
    chunk.file = &folder->open(folder->field(*place->second, "relative_path").text());
    chunk.begin = static_cast<uint64_t>(folder->field(*place->second, "offset").integer());
    chunk.length = static_cast<uint64_t>(folder->field(*place->second, "length").integer());
    chunks.push_back(std::move(chunk));
  }
  require_whole(*folder, tensor, chunks);
  tensor.read = [chunks, shape = tensor.shape, bytes = tensor.bytes, dtype = tensor.dtype, name](const auto& take) {
    std::string whole(bytes, '\0');
    for (const Chunk& chunk : chunks)
      place_chunk(whole, shape, chunk, chunk_elements(chunk, *dtype, name), static_cast<size_t>(dtype->bytes));
    take(whole.data(), whole.size());
  };
  return tensor;
}

/// Names as they were before the nested dicts were flattened. A dict that holds only another dict is skipped.
std::map<std::string, std::string> merged_names(const DistributedFolder& folder) {
  const PickleNode& paths = folder.field(*folder.tree.root, "planner_data");
  const bool known = paths.is_dict() && !paths.dict().items.empty();
  bool nested = known;
  for (const auto& item : known ? paths.dict().items : PicklePairs{}) {
    const auto& path = item.second->items();
    if (path.empty()) folder.fail("a tensor has no name");
    const auto& first = paths.dict().items.front().second->items()[0];
    nested = nested && path.size() > 1 && path[0]->is(PickleKind::kText) && first->is(PickleKind::kText) &&
             path[0]->text() == first->text();
  }
  std::map<std::string, std::string> names;
  for (const auto& [key, description] : folder.field(*folder.tree.root, "state_dict_metadata").dict().items) {
    const PickleNode* path = known ? paths.find(key->text()) : nullptr;
    if (known && (path == nullptr || path->items().size() != (nested ? 2u : 1u))) {
      folder.fail(key->text() +
                  " is nested deeper than the weights of a model are. Is it an optimizer's state? Only weights can be merged");
    }
    names[key->text()] = known ? path->items().back()->text() : key->text();
  }
  return names;
}

}  // namespace

MergeableWeights detail::open_distributed_checkpoint(const std::filesystem::path& path) {
  const auto folder = std::make_shared<DistributedFolder>(path);
  MergeableWeights weights;
  weights.owners.push_back(folder);
  try {
    const auto names = merged_names(*folder);
    const auto places = chunk_places(*folder);
    for (const auto& [key, description] : folder->field(*folder->tree.root, "state_dict_metadata").dict().items) {
      if (!description->is(PickleKind::kObject) || !description->object().name.ends_with(".TensorStorageMetadata"))
        folder->fail(key->text() + " is not a tensor");
      weights.tensors.push_back(distributed_tensor(folder, names.at(key->text()), key->text(), *description, places));
    }
  } catch (const PickleKindError& error) {
    folder->fail(error.what());
  }
  return weights;
}

}  // namespace accelerate
