#include <accelerate/checkpoint/weights.h>
#include <accelerate/core/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <filesystem>
#include <memory>

#include "checkpoint/fetched_weights.h"
#include "checkpoint/staged_folder.h"
#include "checkpoint/stored_tensors.h"
#include "checkpoint/tensor_file.h"
#include "core/escaped.h"
#include "core/file.h"
#include "distributed/busy.h"
#include "formats/weight_index.h"
#include "formats/weight_shards.h"

namespace accelerate {

using namespace detail;
namespace {

namespace fs = std::filesystem;

std::vector<WeightToPlace> weights_to_place(const TensorDict& weights) {
  std::vector<WeightToPlace> places;
  for (const auto& [name, tensor] : weights) {
    const auto* storage = tensor.has_storage() && tensor.numel() > 0 ? tensor.storage().unsafeGetStorageImpl() : nullptr;
    places.push_back({name, tensor.nbytes(), storage ? std::optional(reinterpret_cast<uint64_t>(storage)) : std::nullopt});
  }
  return places;
}

/// Bytes where no unit is given, as Python's whole numbers.
uint64_t shard_limit(const std::string& size) {
  uint64_t bytes = 0;
  const auto [end, problem] = std::from_chars(size.data(), size.data() + size.size(), bytes);
  return problem == std::errc() && end == size.data() + size.size() && bytes > 0 ? bytes : parse_shard_size(size);
}

/// A set of files that take their places together.
class WeightFiles {
 public:
  explicit WeightFiles(const fs::path& folder) : folder_(folder) {}

  OutputFile& add(const std::string& name) {
    names_.push_back(name);
    return *files_.emplace_back(std::make_unique<OutputFile>(folder_ / name));
  }

  void commit() {
    for (const auto& file : files_) file->settle();
    // A set that is half old and half new must not look like a whole one, so what names the old shards goes first.
    for (const auto format : {WeightFormat::kSafetensors, WeightFormat::kTorch}) remove(weight_index_name(format));
    for (const auto& file : files_) file->commit();
    remove_others();
  }

 private:
  void remove(const std::string& name) {
    std::error_code problem;
    fs::remove(folder_ / name, problem);
    if (problem) throw CheckpointError(fmt::format("Cannot remove {}: {}.", (folder_ / name).string(), problem.message()));
  }

  void remove_others() {
    std::vector<std::string> stale;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      const bool is_weights =
          is_weight_file_name(WeightFormat::kSafetensors, name) || is_weight_file_name(WeightFormat::kTorch, name);
      if (is_weights && std::find(names_.begin(), names_.end(), name) == names_.end()) stale.push_back(name);
    }
    for (const auto& name : stale) remove(name);
  }

  const fs::path folder_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<OutputFile>> files_;
};

/// A file until writing it fails, and nothing from there on.
class LenientSink final : public ByteSink {
 public:
  LenientSink(ByteSink* sink, std::exception_ptr& failure) : sink_(sink), failure_(failure) {}
  void write(const void* bytes, uint64_t size) override {
    try {
      if (sink_ && !failure_) sink_->write(bytes, size);
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

 private:
  ByteSink* sink_;
  std::exception_ptr& failure_;
};

}  // namespace

void detail::save_fetched_weights(const TensorDict& described, const FetchTensor& fetch, const std::string& folder,
                                  const std::string& max_shard_size, bool writes) {
  const Busy busy("save_model", folder);
  const TensorDict kept = without_tied(described);
  const ShardPlan plan = plan_shards(weights_to_place(kept), shard_limit(max_shard_size));
  constexpr auto kFormat = WeightFormat::kSafetensors;
  std::exception_ptr failure;  // the others wait for this rank in the collectives of `fetch`
  WeightFiles files(folder);
  WeightIndex index;
  index.total_size = plan.total_size;
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    const std::string name = weight_file_name(kFormat, i + 1, plan.shards.size());
    ByteSink* file = nullptr;
    try {
      if (writes && i == 0) make_folder(folder);
      if (writes && !failure) file = &files.add(name);
    } catch (...) {
      failure = std::current_exception();
    }
    TensorDict shard;
    for (const auto& tensor : plan.shards[i]) {
      shard[tensor] = kept.at(tensor);
      index.weight_map.emplace_back(tensor, name);
    }
    LenientSink sink(file, failure);
    write_fetched(writes ? &sink : nullptr, shard, fetch);
  }
  if (failure) std::rethrow_exception(failure);
  if (!writes) return;
  if (plan.shards.size() > 1) {
    const std::string text = write_weight_index(index);
    files.add(weight_index_name(kFormat)).write(text.data(), text.size());
  }
  files.commit();
}

void save_weights(const TensorDict& weights, const std::string& folder, const SaveModelOptions& options) {
  const Busy busy("save_model", folder);
  const auto format = options.safe_serialization ? WeightFormat::kSafetensors : WeightFormat::kTorch;
  const auto tensor_format = options.safe_serialization ? TensorFormat::safetensors : TensorFormat::torch;
  // A torch file keeps both names of a weight that is tied, as in Python; a safetensors file cannot.
  const TensorDict kept = options.safe_serialization ? without_tied(weights) : weights;
  const ShardPlan plan = plan_shards(weights_to_place(kept), shard_limit(options.max_shard_size));
  make_folder(folder);
  WeightFiles files(folder);
  WeightIndex index;
  index.total_size = plan.total_size;
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    const std::string name = weight_file_name(format, i + 1, plan.shards.size());
    TensorDict shard;
    for (const auto& tensor : plan.shards[i]) {
      shard[tensor] = kept.at(tensor);
      index.weight_map.emplace_back(tensor, name);
    }
    write_tensors(files.add(name), tensor_format, name, shard, PickleKind::kDict);
  }
  if (plan.shards.size() > 1) {
    const std::string text = write_weight_index(index);
    files.add(weight_index_name(format)).write(text.data(), text.size());
  }
  files.commit();
}

TensorDict load_weights(const std::string& path) {
  const Busy busy("load_weights", path);
  const WeightFileList list = find_weight_files(path);
  TensorDict weights;
  for (const auto& file : list.files) {
    for (auto& [name, tensor] : read_tensors(InputFile(file))) weights[name] = tensor;
  }
  for (const auto& [tensor, file] : list.tensors) {
    if (!weights.contains(tensor)) {
      throw CheckpointError(escaped(fmt::format("{} says that {} contains {}, but it does not.", list.index, file, tensor)));
    }
  }
  return weights;
}

}  // namespace accelerate
