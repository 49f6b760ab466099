#include "checkpoint/tensor_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <accelerate/core/error.h>
#include <fmt/format.h>

#include <filesystem>

#include "checkpoint/dtypes.h"
#include "checkpoint/value_file.h"
#include "core/escaped.h"
#include "distributed/plain_tensor.h"
#include "distributed/tensor_text.h"
#include "formats/safetensors_file.h"

namespace accelerate::detail {
namespace {

void require_dense(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta() || tensor.layout() != at::kStrided || tensor.is_quantized()) {
    throw CheckpointError(fmt::format("The tensor {} cannot be saved: it has no dense data ({}).", name,
                                      tensor.defined() ? "meta, sparse or quantized" : "undefined"));
  }
}

SafetensorsEntry describe_entry(const std::string& name, const at::Tensor& tensor) {
  if (name == "__metadata__") throw CheckpointError("A tensor cannot be called __metadata__ in a safetensors file. Rename it.");
  const auto* facts = facts_of(tensor.scalar_type());
  if (!facts || facts->safetensors.empty()) {
    throw CheckpointError(fmt::format("The tensor {} has the dtype {}, which safetensors does not support. Convert it first.",
                                      name, dtype_name(tensor.scalar_type())));
  }
  return {name, std::string(facts->safetensors), tensor.sizes().vec(), 0, 0};
}

void write_safetensors(ByteSink& sink, const TensorDict& tensors) {
  for (const auto& [name, tensor] : tensors) require_dense(name, tensor);
  write_fetched(&sink, tensors, [&](const std::string& name) { return tensors.at(name); });
}

void write_torch(ByteSink& sink, const std::string& archive, const TensorDict& tensors, PickleKind dict) {
  ValueTree tree;
  PicklePairs items;
  for (const auto& [name, tensor] : tensors) items.emplace_back(tree.tree().text(name), tree.node(tensor.detach()));
  // But for the versions of layers that the state of a module carries along in Python, and that nothing of today's asks for.
  tree.tree().root = tree.tree().dict(std::move(items), dict);
  tree.write(sink, archive);
}

/// The tensor where its bytes lie, if they are in memory and lie as its dtype needs it; else read.
at::Tensor read_entry(const ByteSource& source, const SafetensorsFile& file, const SafetensorsEntry& entry,
                      at::ScalarType dtype) {
  const auto memory = source.memory();
  char* const place = memory ? memory.get() + file.offset_of(entry) : nullptr;
  if (memory && reinterpret_cast<uintptr_t>(place) % at::elementSize(dtype) == 0) {
    return at::from_blob(
        place, entry.shape, [memory](void*) {}, dtype);
  }
  at::Tensor tensor = at::empty(entry.shape, dtype);
  file.read(entry, tensor.mutable_data_ptr());
  return tensor;
}

TensorDict read_safetensors(const ByteSource& source) {
  const SafetensorsFile file(source);
  TensorDict tensors;
  for (const auto& entry : file.header().entries) {
    const auto* facts = find_safetensors_dtype(entry.dtype);
    if (!facts) {
      throw CheckpointError(escaped(fmt::format("The tensor {} of {} has the dtype {}, which this LibTorch does not support.",
                                                entry.name, source.name(), entry.dtype)));
    }
    tensors[entry.name] = read_entry(source, file, entry, scalar_type_of(*facts, source.name(), entry.name));
  }
  return tensors;
}

TensorDict read_torch(const ByteSource& source) {
  const TorchFile file(source);
  if (!file.root().is_dict()) {
    throw CheckpointError(
        fmt::format("{} contains {}; expected a dictionary of tensors.", source.name(), to_string(file.root().kind)));
  }
  ValueReader reader(file);
  TensorDict tensors;
  for (const auto& [key, value] : file.root().dict().items) {
    if (!key->is(PickleKind::kText) || !value->is(PickleKind::kTensor)) {
      throw CheckpointError(
          escaped(fmt::format("{} contains {} under {}; expected named tensors.", source.name(), to_string(value->kind),
                              key->is(PickleKind::kText) ? "'" + key->text() + "'" : std::string(to_string(key->kind)))));
    }
    tensors[key->text()] = reader.tensor(value->tensor());
  }
  return tensors;
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() > 0 && a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() &&
         a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

}  // namespace

/// A zip archive, or a pickle as the old format begins with one. No safetensors file begins so: its header would be too long.
bool looks_like_torch(const ByteSource& source) {
  if (source.size() < 2) return false;
  const std::string start = source.text(0, 2);
  return start == "PK" || start == "\x80\x02" || start == "\x80\x03" || start == "\x80\x04" || start == "\x80\x05";
}

TensorFormat format_by_name(const std::string& path) {
  const auto extension = std::filesystem::path(path).extension();
  if (extension == ".safetensors") return TensorFormat::safetensors;
  if (extension == ".pt" || extension == ".pth" || extension == ".bin") return TensorFormat::torch;
  throw UsageError(
      fmt::format("{}: unknown extension '{}'. Expected .safetensors, .pt, .pth or .bin.", path, extension.string()));
}

void write_fetched(ByteSink* sink, const TensorDict& described, const FetchTensor& fetch) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : described) entries.push_back(describe_entry(name, tensor));
  SafetensorsHeader header;
  const std::string start = make_safetensors_header(std::move(entries), {{"format", "pt"}}, header);
  if (sink) sink->write(start.data(), start.size());
  for (const auto& entry : header.entries) {
    const at::Tensor tensor = fetch(entry.name);
    if (sink == nullptr) continue;
    const at::Tensor elements = plain(tensor.cpu());
    sink->write(elements.const_data_ptr(), elements.nbytes());
  }
}

void write_tensors(ByteSink& sink, TensorFormat format, const std::string& name, const TensorDict& tensors, PickleKind dict) {
  if (format == TensorFormat::safetensors) return write_safetensors(sink, tensors);
  write_torch(sink, torch_archive_name(name), tensors, dict);
}

TensorDict read_tensors(const ByteSource& source) {
  return looks_like_torch(source) ? read_torch(source) : read_safetensors(source);
}

TensorDict without_tied(const TensorDict& tensors, std::vector<std::pair<std::string, std::string>>* tied) {
  std::unordered_multimap<const void*, const TensorDict::Item*> kept;
  TensorDict result;
  for (const auto& item : tensors) {
    const void* storage =
        item.second.defined() && item.second.has_storage() ? item.second.storage().unsafeGetStorageImpl() : nullptr;
    const TensorDict::Item* first = nullptr;
    const auto [begin, end] = storage ? kept.equal_range(storage) : std::pair(kept.end(), kept.end());
    for (auto candidate = begin; candidate != end && !first; ++candidate) {
      if (same_memory(candidate->second->second, item.second)) first = candidate->second;
    }
    if (first) {
      if (tied) tied->emplace_back(item.first, first->first);
      continue;
    }
    if (storage) kept.emplace(storage, &item);
    result[item.first] = item.second;
  }
  return result;
}

}  // namespace accelerate::detail
