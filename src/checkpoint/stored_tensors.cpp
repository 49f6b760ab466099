#include "checkpoint/stored_tensors.h"

#include <ATen/ops/empty.h>
#include <accelerate/core/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <unordered_map>

#include "checkpoint/dtypes.h"
#include "checkpoint/offload_index.h"
#include "checkpoint/tensor_file.h"
#include "core/escaped.h"
#include "core/file.h"
#include "formats/safetensors_file.h"
#include "formats/torch_file.h"
#include "formats/weight_index.h"
#include "formats/weight_shards.h"

namespace accelerate::detail {
namespace {

namespace fs = std::filesystem;

void list_safetensors(const InputFile& source, std::vector<StoredTensor>& tensors) {
  const SafetensorsFile file(source);
  for (const auto& entry : file.header().entries) {
    const auto* facts = find_safetensors_dtype(entry.dtype);
    if (!facts) {
      throw CheckpointError(escaped(fmt::format("The tensor {} of {} has the dtype {}, which this LibTorch does not support.",
                                                entry.name, source.name(), entry.dtype)));
    }
    tensors.push_back({.name = entry.name,
                       .dtype = scalar_type_of(*facts, source.name(), entry.name),
                       .shape = entry.shape,
                       .file = source.path().string(),
                       .offset = file.offset_of(entry)});
  }
}

void list_torch(const InputFile& source, std::vector<StoredTensor>& tensors) {
  const TorchFile file(source);
  for (const auto& [key, value] : file.root().dict().items) {
    if (!key->is(PickleKind::kText) || !value->is(PickleKind::kTensor)) {
      throw CheckpointError(fmt::format("{} contains {}; expected named tensors.", source.name(), to_string(value->kind)));
    }
    const PickleTensor& tensor = value->tensor();
    StoredTensor stored{.name = key->text(),
                        .dtype = scalar_type_of(*tensor.dtype, source.name(), key->text()),
                        .shape = tensor.sizes,
                        .file = source.path().string(),
                        .in_place = is_contiguous(tensor) && !tensor.conjugated && !tensor.negative && !tensor.storage.empty()};
    if (stored.in_place) {
      stored.offset =
          file.storage(tensor.storage).offset + static_cast<uint64_t>(tensor.offset) * static_cast<uint64_t>(tensor.dtype->bytes);
    }
    tensors.push_back(std::move(stored));
  }
}

/// The index of a folder that has one under another name than ours.
std::string only_index(const fs::path& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().string().ends_with(".index.json")) found.push_back(entry.path().string());
  }
  if (found.size() == 1) return found[0];
  if (found.size() > 1) {
    std::sort(found.begin(), found.end());
    throw CheckpointError(fmt::format("{} has several weight indexes ({}). Give the path of one of them.", folder.string(),
                                      fmt::join(found, ", ")));
  }
  throw CheckpointError(fmt::format(
      "{} has no weights: none of model.safetensors, pytorch_model.bin and their .index.json exists.", folder.string()));
}

std::string weights_in_folder(const fs::path& folder) {
  std::error_code problem;
  for (const auto format : {WeightFormat::kSafetensors, WeightFormat::kTorch}) {
    for (const auto& name : {weight_file_name(format), weight_index_name(format)}) {
      if (fs::exists(folder / name, problem)) return (folder / name).string();
    }
  }
  return only_index(folder);
}

}  // namespace

uint64_t StoredTensor::bytes() const {
  uint64_t count = c10::elementSize(dtype);
  for (const int64_t size : shape) count *= static_cast<uint64_t>(size);
  return count;
}

WeightFileList find_weight_files(const std::string& path) {
  std::error_code problem;
  if (fs::is_directory(path, problem)) return find_weight_files(weights_in_folder(path));
  if (!path.ends_with(".json")) return {.files = {path}};
  const WeightIndex index = read_weight_index(InputFile(path));
  WeightFileList list{.index = path};
  for (const auto& name : index.files()) {
    list.files.push_back((fs::path(path).parent_path() / name).string());
    if (!fs::exists(list.files.back(), problem))
      throw CheckpointError(escaped(fmt::format("{} lists {}, which does not exist.", path, name)));
  }
  for (const auto& [tensor, name] : index.weight_map) {
    list.tensors.emplace_back(tensor, (fs::path(path).parent_path() / name).string());
  }
  return list;
}

std::vector<StoredTensor> list_stored_tensors(const std::string& path) {
  std::error_code problem;
  if (fs::exists(fs::path(path) / kOffloadIndexName, problem)) return list_offloaded(path);
  const WeightFileList list = find_weight_files(path);
  std::vector<StoredTensor> tensors;
  for (const auto& file : list.files) {
    const InputFile source(file);
    looks_like_torch(source) ? list_torch(source, tensors) : list_safetensors(source, tensors);
  }
  std::unordered_map<std::string, const StoredTensor*> found;
  for (const auto& tensor : tensors) found[tensor.name] = &tensor;
  for (const auto& [tensor, file] : list.tensors) {
    const auto place = found.find(tensor);
    if (place == found.end() || place->second->file != file) {
      throw CheckpointError(escaped(fmt::format("{} says that {} contains {}, but it does not.", list.index, file, tensor)));
    }
  }
  return tensors;
}

at::Tensor read_stored_tensor(const StoredTensor& tensor) {
  if (!tensor.in_place) return read_tensors(InputFile(tensor.file)).at(tensor.name);
  at::Tensor elements = at::empty(tensor.shape, tensor.dtype);
  InputFile(tensor.file).read(elements.mutable_data_ptr(), tensor.bytes(), tensor.offset);
  return elements;
}

}  // namespace accelerate::detail
