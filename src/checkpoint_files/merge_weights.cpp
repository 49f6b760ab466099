#include <accelerate/checkpoint_files/merge_weights.h>
#include <accelerate/core/error.h>

#include <unordered_set>

#include "checkpoint_files/weight_sources.h"
#include "core/escaped.h"
#include "core/file.h"
#include "formats/safetensors_header.h"
#include "formats/torch_file.h"
#include "formats/weight_shards.h"

namespace accelerate {

using namespace detail;
namespace {

namespace fs = std::filesystem;

void write_safetensors(const std::vector<WeightSource>& tensors, ByteSink& sink, MergeResult& result) {
  std::vector<SafetensorsEntry> entries;
  std::unordered_map<std::string, const WeightSource*> by_name;
  for (const auto& tensor : tensors) {
    if (tensor.same_as) {
      result.left_out.push_back(tensor.name);
      continue;
    }
    if (tensor.safetensors_dtype.empty()) {
      throw CheckpointError(escaped("The tensor " + tensor.name + " is " + std::string(tensor.dtype->name) +
                                    ", which safetensors does not support. Use --unsafe_serialization."));
    }
    entries.push_back({tensor.name, tensor.safetensors_dtype, tensor.shape, 0, 0});
    by_name[tensor.name] = &tensor;
  }
  SafetensorsHeader header;
  const std::string start = make_safetensors_header(std::move(entries), {{"format", "pt"}}, header);
  sink.write(start.data(), start.size());
  for (const auto& entry : header.entries) {
    by_name.at(entry.name)->read([&](const void* bytes, uint64_t size) { sink.write(bytes, size); });
    result.bytes += entry.end - entry.begin;
    ++result.tensors;
  }
}

PickleTensor contiguous_tensor(const WeightSource& tensor, size_t storage) {
  if (tensor.dtype == nullptr) {
    throw CheckpointError(escaped("The tensor " + tensor.name + " is " + tensor.safetensors_dtype +
                                  ", which torch files do not support. Omit --unsafe_serialization."));
  }
  PickleTensor made;
  made.storage = std::to_string(storage);
  made.dtype = tensor.dtype;
  made.storage_elements = tensor.bytes / static_cast<uint64_t>(tensor.dtype->bytes);
  made.sizes = tensor.shape;
  made.strides.assign(tensor.shape.size(), 1);
  for (size_t i = tensor.shape.size(); i-- > 1;) made.strides[i - 1] = made.strides[i] * std::max<int64_t>(tensor.shape[i], 1);
  return made;
}

/// Tensors that share a storage keep sharing it.
void write_torch_file(const std::vector<WeightSource>& tensors, const fs::path& path, ByteSink& sink, MergeResult& result) {
  PickleTree tree;
  PicklePairs pairs;
  std::vector<PickleNode*> nodes;
  std::vector<const WeightSource*> stored;
  for (const auto& tensor : tensors) {
    if (tensor.same_as) {
      nodes.push_back(nodes[*tensor.same_as]);
    } else {
      nodes.push_back(tree.tensor(contiguous_tensor(tensor, stored.size())));
      stored.push_back(&tensor);
    }
    pairs.emplace_back(tree.text(tensor.name), nodes.back());
  }
  tree.root = tree.dict(std::move(pairs));
  TorchFileWriter writer(sink, torch_archive_name(path.string()), *tree.root);
  for (size_t i = 0; i < stored.size(); ++i) {
    writer.begin(std::to_string(i), stored[i]->bytes);
    stored[i]->read([&](const void* bytes, uint64_t size) { writer.write(bytes, size); });
    result.bytes += stored[i]->bytes;
  }
  writer.finish();
  result.tensors = tensors.size();
}

void require_distinct(const std::vector<WeightSource>& tensors) {
  std::unordered_set<std::string_view> names;
  for (const auto& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      throw CheckpointError(escaped("Two of the tensors to merge are called " + tensor.name + "."));
  }
}

/// The deepest existing folder on the path to `folder`.
fs::path existing_part(const fs::path& folder) {
  fs::path existing = folder.is_absolute() ? "/" : ".";
  int missing = 0;  // folders still to be made below it; ".." leads back out of them
  for (const fs::path& name : folder) {
    if (missing == 0 && fs::exists(existing / name)) {
      existing /= name;
    } else if (name == "..") {
      --missing;
    } else if (!name.empty() && name != ".") {
      ++missing;
    }
  }
  return existing;
}

/// Whether a file in `place` would be removed with `folder`. Folders are compared and not their paths, of which a folder may
/// have many: links, "..", mounts.
bool is_removed_with(const fs::path& folder, const fs::path& place) {
  if (fs::equivalent(folder, place)) return true;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_directory() && !entry.is_symlink() && fs::equivalent(entry.path(), place)) return true;
  }
  return false;
}

void require_kept(const fs::path& file, const fs::path& folder) {
  try {
    if (!is_removed_with(folder, existing_part(file.parent_path()))) return;
  } catch (const fs::filesystem_error& error) {
    throw CheckpointError("Cannot determine whether " + file.string() + " would be removed with " + folder.string() + ": " +
                          error.code().message() + ". Merge without --remove_checkpoint_dir.");
  }
  throw UsageError("The merged file would be in " + folder.string() +
                   ", which --remove_checkpoint_dir removes. Choose another path for it.");
}

fs::path output_file(const fs::path& out, const MergeOptions& options) {
  const auto format = options.safe_serialization ? WeightFormat::kSafetensors : WeightFormat::kTorch;
  if (out.extension() == ".safetensors" || out.extension() == ".bin") {
    if ((out.extension() == ".safetensors") != options.safe_serialization)
      throw UsageError(
          out.string() +
          " has the wrong extension: --unsafe_serialization writes a .bin file, otherwise a .safetensors file is written.");
    return out;
  }
  return out / weight_file_name(format);
}

}  // namespace

MergeResult merge_weights(const fs::path& folder, const fs::path& out, const MergeOptions& options) {
  MergeResult result;
  result.file = output_file(out, options);
  const WeightSources weights = find_weight_sources(folder);
  require_distinct(weights.tensors);
  if (options.remove_checkpoint_dir) require_kept(result.file, folder);
  if (const auto parent = result.file.parent_path(); !parent.empty()) {
    std::error_code problem;
    fs::create_directories(parent, problem);
    if (problem) throw CheckpointError("Cannot create the folder " + parent.string() + ": " + problem.message() + ".");
  }
  OutputFile file(result.file);
  options.safe_serialization ? write_safetensors(weights.tensors, file, result)
                             : write_torch_file(weights.tensors, result.file, file, result);
  file.commit();
  if (options.remove_checkpoint_dir) {
    std::error_code problem;
    result.file = fs::canonical(result.file, problem);        // a path through the folder would lead nowhere
    fs::remove_all(fs::canonical(folder, problem), problem);  // of a link, too, what was merged is removed
    if (problem)
      throw CheckpointError("Cannot remove " + folder.string() + ": " + problem.message() + ". The merged file is complete.");
  }
  return result;
}

}  // namespace accelerate
