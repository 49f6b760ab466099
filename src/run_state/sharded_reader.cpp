#include "run_state/sharded_reader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <accelerate/core/error.h>
#include <accelerate/parallel/model.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <set>
#include <unordered_map>

#include "checkpoint/dtypes.h"
#include "checkpoint/value_file.h"
#include "checkpoint_files/distributed_checkpoint.h"
#include "checkpoint_files/weight_sources.h"
#include "core/escaped.h"
#include "run_state/named_optimizer_state.h"
#include "run_state/run_parts.h"
#include "sharding/own_operators.h"
#include "sharding/shard_pieces.h"
#include "sharding/sharded_model.h"

namespace accelerate::detail {
namespace {

namespace fs = std::filesystem;

RangedTensor ranged(const WeightSource& source, const fs::path& folder) {
  return {.dtype = scalar_type_of(*source.dtype, folder.string(), source.name),
          .shape = source.shape,
          .read = [&source](uint64_t begin, uint64_t end, void* bytes) { read_range(source, begin, end, bytes); }};
}

/// By the names of the module, of which a file may have one for weights that are tied.
class ShardReader {
 public:
  ShardReader(const ShardedModel& model, const WeightSources& sources, const fs::path& folder)
      : model_(model), sources_(sources), folder_(folder) {
    for (const auto& unit : model.units())
      loaded_.shards.push_back(at::zeros({unit->layout.shard_size()}, unit->shard.scalar_type()));
  }

  LoadedShards read() {
    for (const auto& entry : model_.entries()) {
      const WeightSource* source = sources_.find(entry.name);
      // What is missing, or has another shape, is told when it is compared with the module.
      if (source == nullptr || source->shape != entry.tensor.sizes().vec()) continue;
      if (!entry.place) {
        loaded_.whole[entry.name] = ranged(*source, folder_).read_whole();
      } else if (done_.emplace(entry.place->unit, entry.place->weight).second) {
        read_weight(*entry.place, *source);
      }
    }
    return std::move(loaded_);
  }

 private:
  void read_weight(const ShardedModel::Place& place, const WeightSource& source) {
    const auto piece = model_.units()[place.unit]->layout.piece(place.weight, model_.shard_group().process_index());
    loaded_.shards[place.unit].narrow(0, piece.offset, piece.length).copy_(read_part(model_, place, ranged(source, folder_)));
  }

  const ShardedModel& model_;
  const WeightSources& sources_;
  const fs::path& folder_;
  LoadedShards loaded_;
  std::set<std::pair<size_t, size_t>> done_;
};

/// Puts the entries of a distributed checkpoint back into the dictionaries that they were in.
class OptimizerReader {
 public:
  OptimizerReader(const RunParts& parts, const AcceleratedOptimizer& optimizer, const fs::path& folder) : checkpoint_(folder) {
    const auto parameters = optimizer.parameters();
    size_t number = 0;
    for (const auto& group : group_names(parts, optimizer)) {
      for (const auto& name : group) add_parameter(parts, name, parameters[number++]);
    }
  }

  StateDict read() {
    for (const auto& tensor : checkpoint_.tensors()) read_tensor(tensor);
    for (const auto& value : checkpoint_.values()) read_value(value);
    Value::List groups;
    for (auto& [number, group] : groups_) groups.emplace_back(std::move(group));
    StateDict states;
    for (auto& [name, fields] : states_) states[name] = std::move(fields);
    StateDict state;
    state["state"] = std::move(states);
    state["param_groups"] = std::move(groups);
    return state;
  }

 private:
  struct Parameter {
    const ShardedModel* model = nullptr;
    std::optional<ShardedModel::Place> place = {};
  };

  void add_parameter(const RunParts& parts, const std::string& name, const at::Tensor& parameter) {
    Parameter& added = parameters_[name];
    for (const auto& model : parts.stepped_models()) {
      if (!model->sharded() || added.place) continue;
      added = {model->sharded(), model->sharded()->place_of(parameter)};
    }
  }

  [[noreturn]] void refuse(const std::string& name) const {
    throw CheckpointError((checkpoint_.folder() / kDistributedMetadataName).string() + ": " + escaped(name, kLongestQuote) +
                          " is not part of the state of an optimizer.");
  }

  /// Of the parameter or group that a path leads to: {"optimizer", "state", "fc.weight", "exp_avg"}. Null for a parameter that
  /// the optimizer does not have, of which its groups will tell.
  Value* place_for(const std::string& name, const StatePath& path) {
    if (path.size() != 3 && path.size() != 4) refuse(name);
    const auto* kind = std::get_if<std::string>(&path[path.size() - 3]);
    const auto* field = std::get_if<std::string>(&path.back());
    if (kind == nullptr || field == nullptr) refuse(name);
    const auto& owner = path[path.size() - 2];
    if (const auto* number = std::get_if<int64_t>(&owner); number != nullptr && *kind == "param_groups")
      return &groups_[*number][*field];
    const auto* parameter = std::get_if<std::string>(&owner);
    if (parameter == nullptr || *kind != "state") refuse(name);
    return parameters_.contains(*parameter) ? &states_[*parameter][*field] : nullptr;
  }

  void read_tensor(const DistributedTensor& tensor) {
    Value* const place = place_for(tensor.name, tensor.path);
    if (place == nullptr) return;
    const RangedTensor elements{
        .dtype = scalar_type_of(*tensor.dtype, checkpoint_.folder().string(), tensor.name),
        .shape = tensor.shape,
        .read = [&](uint64_t begin, uint64_t end, void* bytes) { checkpoint_.read(tensor, begin, end, bytes); }};
    const auto* name = std::get_if<std::string>(&tensor.path[tensor.path.size() - 2]);
    const Parameter parameter = name != nullptr ? parameters_.at(*name) : Parameter();
    *place = is_sharded(parameter, tensor) ? read_part(*parameter.model, *parameter.place, elements) : elements.read_whole();
  }

  static bool is_sharded(const Parameter& parameter, const DistributedTensor& tensor) {
    if (!parameter.place || tensor.path.back() == StatePath::value_type("step")) return false;
    return tensor.shape ==
           parameter.model->units()[parameter.place->unit]->weights[parameter.place->weight].parameter.sizes().vec();
  }

  void read_value(const DistributedValue& value) {
    Value* const place = place_for(value.name, value.path);
    if (place == nullptr) return;
    const PickleTree tree = checkpoint_.read(value);
    *place = ValueReader((checkpoint_.folder() / value.place.file).string()).value(*tree.root);
  }

  const DistributedCheckpoint checkpoint_;
  std::unordered_map<std::string, Parameter> parameters_;
  std::map<std::string, StateDict> states_;
  std::map<int64_t, StateDict> groups_;
};

}  // namespace

LoadedWeights read_distributed_model(const ModelCore& model, const fs::path& folder) {
  const OwnOperators own;
  const WeightSources sources = open_distributed_weights(folder);
  LoadedWeights loaded;
  for (const auto& source : sources.tensors) {
    loaded.weights[source.name] =
        model.sharded() ? at::empty(source.shape, at::TensorOptions(at::kMeta)) : ranged(source, folder).read_whole();
  }
  if (model.sharded()) loaded.shards = ShardReader(*model.sharded(), sources, folder).read();
  return loaded;
}

StateDict read_distributed_optimizer(const RunParts& parts, const AcceleratedOptimizer& optimizer, const fs::path& folder) {
  const OwnOperators own;
  return OptimizerReader(parts, optimizer, folder).read();
}

}  // namespace accelerate::detail
