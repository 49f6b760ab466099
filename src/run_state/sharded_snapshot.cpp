#include "run_state/sharded_snapshot.h"

#include <accelerate/core/error.h>
#include <accelerate/distributed/collectives.h>
#include <accelerate/parallel/model.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <unordered_map>

#include "checkpoint/value_file.h"
#include "checkpoint_files/distributed_writer.h"
#include "run_state/checkpoint_files.h"
#include "run_state/named_optimizer_state.h"
#include "run_state/run_parts.h"
#include "sharding/shard_pieces.h"
#include "sharding/sharded_model.h"

namespace accelerate::detail {
namespace {

/// What one rank writes into a folder of shards.
class FolderPart {
 public:
  FolderPart(const RunParts& parts, HostCopies* copies) : parts_(parts), copies_(copies) {}

  /// Of a tensor like the parameter at `place`, of which this rank has `part`.
  void add_part(const ShardedModel& model, const ShardedModel::Place& place, const StatePath& path, const at::Tensor& part) {
    if (!model.has_first_copy()) return;
    for (auto& piece : saved_pieces(model, place, path, part)) content_->pieces.push_back(std::move(piece));
  }
  /// What all ranks have: the main process writes it.
  void add_whole(const StatePath& path, const at::Tensor& tensor) {
    if (parts_.state.is_main_process()) content_->pieces.push_back(saved_whole(path, kept(tensor)));
  }
  void add_value(const StatePath& path, const Value& value) {
    if (parts_.state.is_main_process()) content_->pieces.push_back({.path = path, .value = content_->values.node(value)});
  }
  /// Another name of what was added as `path`.
  void add_name(const StatePath& name, const StatePath& path) { names_.emplace_back(name, flattened_name(path)); }

  at::Tensor kept(const at::Tensor& tensor) const { return copies_ ? copies_->add(tensor, CopyTime::later) : tensor; }

  void finish(RunSnapshot& snapshot, const std::string& folder) {
    const std::string file = distributed_file_name(parts_.state.process_index());
    PlannedFolder planned{folder, plan_distributed_file(content_->pieces, file)};
    const bool writes = !content_->pieces.empty();
    add_tied_names(planned.plan);
    snapshot.folders.push_back(std::move(planned));
    if (!writes) return;
    snapshot.files.push_back(
        {folder + "/" + file, [content = content_](ByteSink& sink) { write_distributed_file(content->pieces, sink); }});
  }

 private:
  /// Bytes are written once: the names lead to the same places.
  void add_tied_names(DistributedMetadata& plan) const {
    std::unordered_map<std::string, size_t> places;
    for (size_t i = 0; i < plan.tensors.size(); ++i) places.emplace(plan.tensors[i].name, i);
    for (const auto& [path, known] : names_) {
      const auto place = places.find(known);
      if (place == places.end()) continue;
      DistributedTensor tied = plan.tensors[place->second];
      tied.name = flattened_name(path);
      tied.path = path;
      plan.tensors.push_back(std::move(tied));
    }
  }

  struct Content {
    std::vector<SavedPiece> pieces;
    ValueTree values;
  };

  const RunParts& parts_;
  HostCopies* const copies_;
  const std::shared_ptr<Content> content_ = std::make_shared<Content>();
  std::vector<std::pair<StatePath, std::string>> names_;
};

struct SteppedShard {
  const ShardedModel* model;
  ShardedModel::Place place;
};

/// Where the shard is that an optimizer steps; nothing when it is none.
std::optional<SteppedShard> stepped_shard(const RunParts& parts, const at::Tensor& parameter) {
  for (const auto& model : parts.models) {
    const auto place = model->sharded() ? model->sharded()->place_of(parameter) : std::nullopt;
    if (place) return SteppedShard{model->sharded(), *place};
  }
  return std::nullopt;
}

void add_parameter_state(FolderPart& part, const RunParts& parts, const at::Tensor& parameter, const StatePath& path,
                         const StateDict& fields) {
  const auto shard = stepped_shard(parts, parameter);
  for (const auto& [name, value] : fields) {
    StatePath field = path;
    field.emplace_back(name);
    if (value.kind() != Value::Kind::tensor) {
      part.add_value(field, value);
    } else if (shard && name != "step") {
      const auto& own = value.as<at::Tensor>();
      part.add_part(*shard->model, shard->place, field, shard->model->has_first_copy() ? part.kept(own) : own);
    } else {
      part.add_whole(field, value.as<at::Tensor>());
    }
  }
}

}  // namespace

bool saves_shards(const ModelCore& model) { return model.sharded() && model.sharded()->saves_shards(); }

bool saves_shards(const RunParts& parts, const AcceleratedOptimizer& optimizer) {
  for (const auto& parameter : optimizer.parameters()) {
    const auto shard = stepped_shard(parts, parameter);
    if (shard && shard->model->saves_shards()) return true;
  }
  return false;
}

void add_shards(RunSnapshot& snapshot, const RunParts& parts, size_t model, HostCopies* copies) {
  const ShardedModel& sharded = *parts.models[model]->sharded();
  FolderPart part(parts, copies);
  std::vector<at::Tensor> shards;
  for (const auto& unit : sharded.units()) shards.push_back(sharded.has_first_copy() ? part.kept(unit->shard) : unit->shard);
  std::vector<std::unordered_map<size_t, StatePath>> known(shards.size());
  for (const auto& [name, tensor, place] : sharded.entries()) {
    const StatePath path = {"model", name};
    if (!place) {
      part.add_whole(path, tensor);
      continue;
    }
    const auto [first, is_new] = known[place->unit].try_emplace(place->weight, path);
    if (!is_new) {
      part.add_name(path, first->second);
      continue;
    }
    const auto piece = sharded.units()[place->unit]->layout.piece(place->weight, sharded.shard_group().process_index());
    part.add_part(sharded, *place, path, shards[place->unit].narrow(0, piece.offset, piece.length));
  }
  part.finish(snapshot, sharded_model_folder(model));
}

void add_shards(RunSnapshot& snapshot, const RunParts& parts, size_t optimizer, const StateDict& state, HostCopies* copies) {
  FolderPart part(parts, copies);
  const auto& stepped = parts.optimizers[optimizer];
  const auto names = group_names(parts, stepped);
  const auto parameters = stepped.parameters();
  const StateDict named = named_state(state, names);
  std::unordered_map<std::string, at::Tensor> parameters_by_name;
  size_t number = 0;
  for (const auto& group : names) {
    for (const auto& name : group) parameters_by_name.emplace(name, parameters[number++]);
  }
  for (const auto& [name, fields] : named.at("state").as<StateDict>()) {
    add_parameter_state(part, parts, parameters_by_name.at(name), {"optimizer", "state", name}, fields.as<StateDict>());
  }
  const auto& groups = named.at("param_groups").as<Value::List>();
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const auto& [name, value] : groups[i].as<StateDict>())
      part.add_value({"optimizer", "param_groups", static_cast<int64_t>(i), name}, value);
  }
  part.finish(snapshot, optimizer_folder(optimizer));
}

void join_folders(RunSnapshot& snapshot, const ProcessState& state, bool leads, std::source_location where) {
  std::vector<std::string> mine;
  for (const auto& folder : snapshot.folders) mine.push_back(write_distributed_metadata(folder.plan));
  const auto all = gather_object(state, mine, where);
  if (all.size() != mine.size() * static_cast<size_t>(state.num_processes()))
    throw UsageError("The ranks do not save the same sharded models. Hooks must take the same ones out on all ranks.");
  if (!leads) return;
  for (size_t i = 0; i < mine.size(); ++i) {
    std::vector<DistributedMetadata> plans;
    for (size_t rank = 0; rank < static_cast<size_t>(state.num_processes()); ++rank)
      plans.push_back(read_distributed_metadata(all[rank * mine.size() + i], snapshot.folders[i].name, MetadataScope::kPart));
    snapshot.files.push_back({snapshot.folders[i].name + "/" + std::string(kDistributedMetadataName),
                              [bytes = write_distributed_metadata(joined_metadata(plans))](ByteSink& sink) {
                                sink.write(bytes.data(), bytes.size());
                              }});
  }
}

}  // namespace accelerate::detail
