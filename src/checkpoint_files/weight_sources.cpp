#include "checkpoint_files/weight_sources.h"

#include <accelerate/core/error.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "core/escaped.h"
#include "core/file.h"
#include "formats/safetensors_file.h"
#include "formats/torch_file.h"
#include "formats/weight_index.h"
#include "formats/weight_shards.h"

namespace accelerate::detail {
namespace {

constexpr uint64_t kMergePiece = 1 << 20;

using TakePiece = std::function<void(const void*, uint64_t)>;

void read_in_pieces(const ByteSource& source, uint64_t offset, uint64_t size, const TakePiece& take) {
  std::string piece(std::min(size, kMergePiece), '\0');
  for (uint64_t done = 0; done < size; done += piece.size()) {
    piece.resize(std::min(kMergePiece, size - done));
    source.read(piece.data(), piece.size(), offset + done);
    take(piece.data(), piece.size());
  }
}

/// A file that is kept open together with what was read of it.
template <typename Parsed>
struct OpenFile {
  InputFile source;
  Parsed parsed;
  explicit OpenFile(const std::filesystem::path& path) : source(path), parsed(source) {}
};

void open_safetensors(const std::filesystem::path& path, WeightSources& weights) {
  const auto file = std::make_shared<OpenFile<SafetensorsFile>>(path);
  weights.owners.push_back(file);
  for (const auto& entry : file->parsed.header().entries) {
    WeightSource tensor{entry.name, entry.dtype, find_safetensors_dtype(entry.dtype), entry.shape};
    tensor.bytes = entry.end - entry.begin;
    const uint64_t begin = file->parsed.offset_of(entry);
    tensor.read = [source = &file->source, begin, size = tensor.bytes](const TakePiece& take) {
      read_in_pieces(*source, begin, size, take);
    };
    tensor.read_part = [source = &file->source, begin](void* bytes, uint64_t size, uint64_t offset) {
      source->read(bytes, size, begin + offset);
    };
    weights.tensors.push_back(std::move(tensor));
  }
}

/// One tensor of a torch file. Where its elements lie in order they are copied in pieces, after the storage has been verified.
WeightSource torch_tensor(const TorchFile& file, const std::string& name, const PickleTensor& tensor) {
  WeightSource made{name, std::string(tensor.dtype->safetensors), tensor.dtype, tensor.sizes};
  made.bytes = static_cast<uint64_t>(tensor.dtype->bytes);
  for (const int64_t size : tensor.sizes) made.bytes *= static_cast<uint64_t>(size);
  if (tensor.conjugated || tensor.negative)
    throw CheckpointError(
        escaped(name + " in " + file.source().name() +
                " is a conjugated or negated view. Resolve it in Python (resolve_conj, resolve_neg) and save it again."));
  made.read = [&file, &tensor, bytes = made.bytes](const TakePiece& take) {
    if (!is_contiguous(tensor)) {
      const std::string elements = file.elements(tensor);
      return take(elements.data(), elements.size());
    }
    const TorchStorage& storage = file.storage(tensor.storage);
    file.verify(storage);
    read_in_pieces(file.source(), storage.offset + static_cast<uint64_t>(tensor.offset * tensor.dtype->bytes), bytes, take);
  };
  made.read_part = [&file, &tensor](void* bytes, uint64_t size, uint64_t offset) {
    if (!is_contiguous(tensor)) {
      const std::string elements = file.elements(tensor);
      if (size > 0) std::memcpy(bytes, elements.data() + offset, size);
      return;
    }
    const auto first = static_cast<uint64_t>(tensor.offset * tensor.dtype->bytes);
    file.source().read(bytes, size, file.storage(tensor.storage).offset + first + offset);
  };
  return made;
}

void open_torch_file(const std::filesystem::path& path, WeightSources& weights) {
  const auto file = std::make_shared<OpenFile<TorchFile>>(path);
  weights.owners.push_back(file);
  const TorchFile& torch = file->parsed;
  if (!torch.root().is_dict())
    throw CheckpointError(path.string() + " holds " + std::string(to_string(torch.root().kind)) + ", not a state dict.");
  using Place = std::tuple<std::string, int64_t, std::vector<int64_t>, std::vector<int64_t>, const DtypeFacts*>;
  std::map<Place, size_t> first;
  for (const auto& [key, value] : torch.root().dict().items) {
    if (!key->is(PickleKind::kText) || !value->is(PickleKind::kTensor))
      throw CheckpointError(path.string() + " holds more than named tensors, so it is not a weights file.");
    const PickleTensor& tensor = value->tensor();
    if (tensor.device == "meta")
      throw CheckpointError(escaped(key->text() + " in " + path.string() + " is on the meta device: it has no elements."));
    weights.tensors.push_back(torch_tensor(torch, key->text(), tensor));
    const auto [known, is_new] = first.try_emplace({tensor.storage, tensor.offset, tensor.sizes, tensor.strides, tensor.dtype},
                                                   weights.tensors.size() - 1);
    if (!is_new && weights.tensors.back().bytes > 0) weights.tensors.back().same_as = known->second;
  }
}

void open_weights(const std::filesystem::path& path, WeightSources& weights) {
  path.extension() == ".safetensors" ? open_safetensors(path, weights) : open_torch_file(path, weights);
}

/// Checks that the index lists exactly the tensors of the shards.
void require_as_indexed(const WeightIndex& index, const std::string& file, const std::set<std::string>& found) {
  for (const auto& [name, shard] : index.weight_map) {
    if (!found.contains(shard + "/" + name))
      throw CheckpointError(escaped(file + " maps " + name + " to " + shard + ", but it is not there."));
  }
  if (found.size() != index.weight_map.size())
    throw CheckpointError("The shards of " + file + " hold " + std::to_string(found.size()) + " tensors, but it lists " +
                          std::to_string(index.weight_map.size()) + ".");
}

WeightSources open_shards(const std::filesystem::path& index_path) {
  const InputFile source(index_path);
  const WeightIndex index = read_weight_index(source);
  WeightSources weights;
  std::set<std::string> found;
  for (const auto& shard : index.files()) {
    const size_t before = weights.tensors.size();
    open_weights(index_path.parent_path() / shard, weights);
    for (size_t i = before; i < weights.tensors.size(); ++i) found.insert(shard + "/" + weights.tensors[i].name);
  }
  require_as_indexed(index, index_path.string(), found);
  return weights;
}

[[noreturn]] void say_what_is_missing(const std::filesystem::path& folder) {
  std::string hint;
  for (const char* inner : {"pytorch_model_fsdp_0", "optimizer_0"}) {
    if (std::filesystem::exists(folder / inner / ".metadata"))
      hint += (hint.empty() ? " Did you mean " : " or ") + (folder / inner).string();
  }
  throw CheckpointError(
      folder.string() +
      " has no weights to merge: no index of shards (model.safetensors.index.json, pytorch_model.bin.index.json), no "
      "model.safetensors or pytorch_model.bin, and no .metadata of a distributed checkpoint." +
      hint + (hint.empty() ? "" : "?"));
}

}  // namespace

const WeightSource* WeightSources::find(std::string_view name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) { return tensor.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

void read_range(const WeightSource& tensor, uint64_t begin, uint64_t end, void* bytes) {
  if (tensor.dtype == nullptr)
    throw UsageError(escaped("A part of " + tensor.name + " cannot be read: torch has no dtype for " + tensor.safetensors_dtype));
  const auto element = static_cast<uint64_t>(tensor.dtype->bytes);
  if (begin > end || end > tensor.bytes / element) {
    throw UsageError(escaped("The elements " + std::to_string(begin) + " to " + std::to_string(end) + " of " + tensor.name +
                             " are to be read, which has " + std::to_string(tensor.bytes / element) + "."));
  }
  if (begin < end) tensor.read_part(bytes, (end - begin) * element, begin * element);
}

WeightSources open_weight_file(const std::filesystem::path& path) {
  if (path.extension() == ".json") return open_shards(path);
  WeightSources weights;
  open_weights(path, weights);
  return weights;
}

WeightSources find_weight_sources(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) throw CheckpointError(folder.string() + " is not a folder.");
  if (std::filesystem::exists(folder / ".metadata")) return open_distributed_weights(folder);
  for (const auto format : {WeightFormat::kSafetensors, WeightFormat::kTorch}) {
    if (std::filesystem::exists(folder / weight_index_name(format))) return open_shards(folder / weight_index_name(format));
  }
  for (const auto format : {WeightFormat::kSafetensors, WeightFormat::kTorch}) {
    if (std::filesystem::exists(folder / weight_file_name(format))) return open_weight_file(folder / weight_file_name(format));
  }
  say_what_is_missing(folder);
}

}  // namespace accelerate::detail
