#include "checkpoint_files/inspection.h"

#include <accelerate/core/error.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "checkpoint_files/distributed_checkpoint.h"
#include "checkpoint_files/inspected_values.h"
#include "core/file.h"
#include "formats/elements.h"
#include "formats/safetensors_file.h"
#include "formats/torch_file.h"
#include "formats/weight_index.h"

namespace accelerate::detail {
namespace {

constexpr size_t kDeepestFolder = 3;

/// The names of a checkpoint's files: a prefix and a suffix, perhaps with a number between them.
struct KnownFile {
  std::string_view start, end, role;
};
constexpr std::array<KnownFile, 17> kKnownFiles = {{
    {"model", ".index.json", "index of weights"},
    {"pytorch_model", ".index.json", "index of weights"},
    {"model", ".safetensors", "weights"},
    {"pytorch_model", ".bin", "weights"},
    {"optimizer", ".bin", "optimizer state"},
    {"scheduler", ".bin", "scheduler state"},
    {"sampler", ".bin", "sampler state"},
    {"dl_state_dict", ".bin", "loader state"},
    {"scaler", ".pt", "gradient scaler state"},
    {"random_states_", ".pkl", "random states of a process"},
    {"custom_checkpoint_", ".pkl", "registered object"},
    {".metadata", "", "description of a distributed checkpoint"},
    {"__", ".distcp", "shard of a distributed checkpoint"},
    {"accelerate_state", ".bin", "positions of loaders and accumulation"},
    {"accelerate_gradients_", ".safetensors", "accumulated gradients of a process"},
    {"accelerate_comm_hooks_", ".bin", "communication hook states of a process"},
    {"accelerate_manifest", ".json", "manifest: sizes and checksums of all files"},
}};

std::string role_of(const std::string& name) {
  for (const auto& known : kKnownFiles) {
    if (name.starts_with(known.start) && name.ends_with(known.end)) return std::string(known.role);
  }
  return {};
}

bool is_torch_name(const std::string& name) {
  for (const std::string_view extension : {".pt", ".pth", ".bin", ".pkl", ".ckpt"}) {
    if (name.ends_with(extension)) return true;
  }
  return false;
}

/// The old format begins with the pickle of a number.
bool looks_like_legacy(const ByteSource& source) {
  return source.size() > 5 && source.text(0, 5) == std::string("\x80\x02\x8a\x0a\x6c", 5);
}

void look_into_safetensors(const ByteSource& source, InspectedFile& file) {
  file.format = "safetensors";
  const SafetensorsFile tensors(source);
  file.metadata.assign(tensors.header().metadata.begin(), tensors.header().metadata.end());
  for (const auto& entry : tensors.header().entries) {
    const DtypeFacts* dtype = find_safetensors_dtype(entry.dtype);
    InspectedItem item{
        .name = entry.name, .type = std::string(dtype != nullptr ? dtype->name : entry.dtype), .shape = entry.shape};
    item.bytes = entry.end - entry.begin;
    if (dtype != nullptr) show_first_elements(source, *dtype, entry.shape, {}, tensors.offset_of(entry), item);
    file.items.push_back(std::move(item));
  }
}

void look_into_torch_file(const ByteSource& source, InspectedFile& file) {
  file.format = "torch";
  const TorchFile torch(source);
  if (torch.is_legacy()) file.format = "torch (old format)";
  file.items = pickled_items(torch);
}

void look_into_index(const ByteSource& source, InspectedFile& file) {
  file.format = "index";
  const WeightIndex index = read_weight_index(source);
  const auto files = index.files();
  file.metadata.emplace_back("tensors", std::to_string(index.weight_map.size()));
  file.metadata.emplace_back("files", std::to_string(files.size()));
  if (index.total_size) file.metadata.emplace_back("total_size", std::to_string(*index.total_size));
  for (const auto& [name, shard] : index.weight_map) file.items.push_back({.name = name, .type = "in", .values = {shard}});
}

/// Reads the first elements of each tensor from the files beside it; values are small and read whole.
void look_into_distributed_checkpoint(const std::filesystem::path& path, InspectedFile& file) {
  file.format = "distributed checkpoint";
  const DistributedCheckpoint checkpoint(path.parent_path());
  for (const auto& tensor : checkpoint.tensors()) {
    InspectedItem item{.name = tensor.name, .type = std::string(tensor.dtype->name), .shape = tensor.shape};
    item.bytes = tensor.bytes();
    const uint64_t shown = std::min(tensor.elements(), kMostShownElements);
    std::string elements(shown * static_cast<uint64_t>(tensor.dtype->bytes), '\0');
    checkpoint.read(tensor, 0, shown, elements.data());
    show_first_elements(MemorySource(elements, tensor.name), *tensor.dtype, tensor.shape, {}, 0, item);
    if (tensor.chunks.size() > 1) item.note = std::to_string(tensor.chunks.size()) + " chunks";
    file.items.push_back(std::move(item));
  }
  for (const auto& value : checkpoint.values()) {
    const PickleTree tree = checkpoint.read(value);
    for (auto& item : plain_items(value.name, *tree.root)) file.items.push_back(std::move(item));
  }
}

void look_into(const std::filesystem::path& path, InspectedFile& file) {
  const std::string name = path.filename();
  const InputFile source(path);
  file.bytes = source.size();
  if (name.ends_with(".safetensors")) {
    look_into_safetensors(source, file);
  } else if (name.ends_with(".index.json")) {
    look_into_index(source, file);
  } else if (name == kDistributedMetadataName) {
    look_into_distributed_checkpoint(path, file);
  } else if (name.ends_with(".distcp")) {
    file.format = "other";  // several concatenated torch files; only .metadata has their offsets
  } else if (is_torch_name(name) || looks_like_zip(source) || looks_like_legacy(source)) {
    look_into_torch_file(source, file);
  } else {
    file.format = "other";
  }
}

void collect_files(const std::filesystem::path& folder, size_t depth, std::vector<std::filesystem::path>& files) {
  std::vector<std::filesystem::path> here;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) here.push_back(entry.path());
  std::sort(here.begin(), here.end());
  for (const auto& path : here) {
    if (std::filesystem::is_directory(path) && !std::filesystem::is_symlink(path)) {
      if (depth < kDeepestFolder) collect_files(path, depth + 1, files);
    } else if (std::filesystem::is_regular_file(path)) {
      files.push_back(path);
    }
  }
}

}  // namespace

uint64_t InspectedFile::tensors() const {
  return static_cast<uint64_t>(std::count_if(items.begin(), items.end(), [](const auto& item) { return item.is_tensor(); }));
}

uint64_t InspectedFile::elements() const {
  uint64_t all = 0;
  for (const auto& item : items) {
    uint64_t count = item.is_tensor() ? 1 : 0;
    if (item.is_tensor()) {
      for (const int64_t size : *item.shape) count *= static_cast<uint64_t>(size);
    }
    all += count;
  }
  return all;
}

InspectedFile inspect_file(const std::filesystem::path& path) {
  InspectedFile file;
  file.path = path;
  file.role = role_of(path.filename());
  look_into(path, file);
  if (file.format == "other" && !file.role.empty()) {
    throw CheckpointError(path.string() + " has nothing to list (" + file.role + "). Inspect its folder" +
                          (path.extension() == ".distcp" ? ", or .metadata beside it," : "") + " instead.");
  }
  if (file.format == "other") {
    throw CheckpointError(
        path.string() +
        " is not a safetensors file, a torch file, an index of weights or a .metadata file. Files are recognized by their names "
        "(.safetensors, .bin, .pt, .pth, .pkl, .index.json) or by their first bytes.");
  }
  return file;
}

std::vector<InspectedFile> inspect_folder(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  try {
    collect_files(folder, 0, paths);
  } catch (const std::filesystem::filesystem_error& error) {
    throw CheckpointError("Cannot list " + folder.string() + ": " + error.code().message() + ".");
  }
  std::vector<InspectedFile> files;
  for (const auto& path : paths) {
    InspectedFile& file = files.emplace_back();
    file.path = path.lexically_relative(folder);
    file.role = role_of(path.filename());
    try {
      look_into(path, file);
    } catch (const CheckpointError& error) {
      file.problem = error.what();
    }
  }
  return files;
}

std::string bytes_text(uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KB", "MB", "GB", "TB"};
  auto number = static_cast<double>(bytes);
  size_t unit = 0;
  for (; number >= 999.5 && unit + 1 < kUnits.size(); ++unit) number /= 1000;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : number < 9.95 ? "%.1f %s" : "%.0f %s", number, kUnits[unit]);
  return text.data();
}

}  // namespace accelerate::detail
