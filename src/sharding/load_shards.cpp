#include "sharding/load_shards.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <accelerate/checkpoint/module_state.h>
#include <accelerate/core/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "checkpoint/dtypes.h"
#include "checkpoint_files/weight_sources.h"
#include "core/escaped.h"
#include "residency/managed_storage.h"
#include "sharding/own_operators.h"
#include "sharding/shard_gatherer.h"

namespace accelerate::detail {
namespace {

namespace fs = std::filesystem;

const StorageRecord* sharded_record_of(const at::Tensor& tensor) {
  const auto* record = record_of(tensor);
  return record && record->absence == Absence::sharded ? record : nullptr;
}

/// One tensor of a checkpoint, and where it goes.
struct Assignment {
  const WeightSource* source;
  at::Tensor target;
};

class ShardLoad {
 public:
  ShardLoad(torch::nn::Module& module, const std::string& checkpoint, const LoadShardsOptions& options)
      : where_(options.where),
        checkpoint_(checkpoint),
        sources_(fs::is_directory(checkpoint) ? find_weight_sources(checkpoint) : open_weight_file(checkpoint)) {
    assign(module, options);
  }

  void run() {
    const OwnOperators own;
    std::set<ShardGatherer*> gatherers;
    for (const auto& each : assignments_) {
      if (const auto* record = sharded_record_of(each.target))
        gatherers.insert(dynamic_cast<ShardGatherer*>(record->pager.get()));
    }
    // One that loads alone, as a main process might, would leave the model half loaded.
    for (const auto* gatherer : gatherers) gatherer->meet("load_checkpoint_in_model", where_);
    for (const auto& each : assignments_) {
      const auto* record = sharded_record_of(each.target);
      if (record == nullptr) {
        at::Tensor(each.target).copy_(read(*each.source, 0, each.target.numel()).view(each.target.sizes()));
        continue;
      }
      fill_piece(dynamic_cast<const ShardGatherer&>(*record->pager), static_cast<size_t>(record->unit),
                 static_cast<size_t>(record->weight), *each.source);
    }
    for (auto* gatherer : gatherers) gatherer->invalidate();
  }

 private:
  void assign(torch::nn::Module& module, const LoadShardsOptions& options) {
    std::unordered_map<std::string, const WeightSource*> by_name;
    for (const auto& source : sources_.tensors) {
      const std::string name = options.new_name ? options.new_name(source.name) : source.name;
      if (!name.empty()) by_name[name] = &source;
    }
    std::vector<std::string> missing, misshapen;
    std::unordered_set<const void*> filled;
    const auto state = accelerate::state_dict(module);
    for (const auto& [name, target] : state) {
      const auto found = by_name.find(name);
      if (found == by_name.end()) continue;
      if (found->second->shape != target.sizes().vec())
        misshapen.push_back(fmt::format("{} ([{}] in the checkpoint, [{}] in the model)", escaped(name),
                                        fmt::join(found->second->shape, ", "), fmt::join(target.sizes().vec(), ", ")));
      assignments_.push_back({found->second, target});
      filled.insert(target.storage().unsafeGetStorageImpl());
      by_name.erase(found);
    }
    for (const auto& [name, target] : state) {
      if (!filled.contains(target.storage().unsafeGetStorageImpl())) missing.push_back(escaped(name));
    }
    if (!misshapen.empty())
      throw CheckpointError(fmt::format("{} does not fit the model: {}.", checkpoint_, fmt::join(misshapen, "; ")));
    if (options.strict && !missing.empty())
      throw CheckpointError(fmt::format("{} lacks weights of the model: {}.", checkpoint_, fmt::join(missing, ", ")));
    if (!options.strict || by_name.empty()) return;
    std::vector<std::string> unexpected;
    for (const auto& item : by_name) unexpected.push_back(escaped(item.first));
    std::sort(unexpected.begin(), unexpected.end());
    throw CheckpointError(fmt::format("{} has tensors that the model lacks: {}.", checkpoint_, fmt::join(unexpected, ", ")));
  }

  at::Tensor read(const WeightSource& source, int64_t begin, int64_t end) const {
    if (source.dtype == nullptr)
      throw CheckpointError(fmt::format("{}: {} is of a dtype that LibTorch lacks.", checkpoint_, escaped(source.name)));
    at::Tensor part = at::empty({end - begin}, scalar_type_of(*source.dtype, checkpoint_, source.name));
    if (end > begin) read_range(source, static_cast<uint64_t>(begin), static_cast<uint64_t>(end), part.mutable_data_ptr());
    return part;
  }

  void fill_piece(const ShardGatherer& gatherer, size_t unit, size_t weight, const WeightSource& source) const {
    const ShardedUnit& sharded = gatherer.unit(unit);
    const auto& parameter = sharded.weights[weight].parameter;
    const auto piece = sharded.layout.piece(weight, gatherer.rank());
    at::Tensor part;
    if (parameter.is_contiguous()) {
      part = read(source, piece.begin, piece.begin + piece.length);
    } else {
      // Shards go by the order of memory, files by that of indices.
      const at::Tensor whole = read(source, 0, parameter.numel());
      at::Tensor ordered = at::empty_strided(parameter.sizes(), parameter.strides(), whole.options());
      ordered.copy_(whole.view(parameter.sizes()));
      part = in_memory_order(ordered).narrow(0, piece.begin, piece.length);
    }
    sharded.weights[weight].piece.detach().copy_(part);
  }

  const std::source_location where_;
  const std::string checkpoint_;
  const WeightSources sources_;
  std::vector<Assignment> assignments_;
};

}  // namespace

bool is_sharded(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& each) { return sharded_record_of(each); });
}

void load_shards(torch::nn::Module& module, const std::string& checkpoint, const LoadShardsOptions& options) {
  ShardLoad(module, checkpoint, options).run();
}

}  // namespace accelerate::detail
