#pragma once

#include <ATen/ops/empty.h>
#include <accelerate/checkpoint/tensor_dict.h>

#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "sharding/own_operators.h"
#include "sharding/sharded_model.h"

namespace accelerate::detail {

/// Gathers the weights of a sharded model one after the other, and holds one unit at a time. All ranks call it in the same order.
class WeightGatherer {
 public:
  explicit WeightGatherer(const ShardedModel& model) : model_(model) {
    const OwnOperators own;
    std::map<std::pair<size_t, size_t>, at::Tensor> known;  // names that are tied have one
    for (auto& entry : model.entries()) {
      at::Tensor tensor = entry.tensor;
      if (entry.place) {
        auto& described = known[{entry.place->unit, entry.place->weight}];
        const auto dtype = model.units()[entry.place->unit]->shard.scalar_type();
        if (!described.defined()) described = at::empty(tensor.sizes(), at::TensorOptions(at::kMeta).dtype(dtype));
        tensor = described;
      }
      described_[entry.name] = tensor;
      entries_.emplace(entry.name, std::move(entry));
    }
  }

  /// Dtypes and shapes, without the elements of weights.
  const TensorDict& described() const { return described_; }

  at::Tensor operator()(const std::string& name) {
    const OwnOperators own;
    const auto& entry = entries_.at(name);
    if (!entry.place) return entry.tensor;
    const ShardedUnit& unit = *model_.units()[entry.place->unit];
    if (gathered_ != entry.place->unit) {
      full_.reset();
      full_ = model_.gather_shards(unit, unit.shard, "save_model");
      gathered_ = entry.place->unit;
    }
    return unit.view_in(full_, entry.place->weight);
  }

 private:
  const ShardedModel& model_;
  TensorDict described_;
  std::unordered_map<std::string, ShardedModel::Entry> entries_;
  std::optional<size_t> gathered_;
  at::Tensor full_;
};

}  // namespace accelerate::detail
