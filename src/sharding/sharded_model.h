#pragma once

#include <accelerate/checkpoint/tensor_dict.h>
#include <accelerate/distributed/process_state.h>
#include <accelerate/sharding/fsdp_options.h>

#include <memory>
#include <optional>
#include <source_location>
#include <unordered_map>
#include <vector>

#include "sharding/gradient_reducer.h"
#include "sharding/shard_gatherer.h"
#include "sharding/sharded_unit.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace accelerate::detail {

/// Gives parameters that were made under InitEmptyWeights the values that their constructors would have given them.
void fill_empty_weights(torch::nn::Module& module);

/// Weights, gradients and optimizer state of one model, sharded over the ranks. The module keeps its parameters, of full shape
/// and without bytes: operators gather them. Optimizers step this rank's pieces of them instead.
class ShardedModel {
 public:
  /// UsageError when the options or the module cannot be had sharded.
  ShardedModel(std::shared_ptr<torch::nn::Module> module, const ProcessState& state, const FsdpOptions& options,
               bool find_unused_parameters, std::source_location where);
  ~ShardedModel();

  /// Before a forward pass: follows parameters that were frozen or unfrozen. UsageError for those that were converted or moved.
  void before_forward();
  GradientReducer& reducer() { return *reducer_; }
  const GradientReducer& reducer() const { return *reducer_; }
  /// Before a step: UsageError when gradients were not synchronised. What was gathered is outdated from now on.
  void before_step();
  /// Before a step is recorded. NotRecordable where replays could not do on the device what the step does.
  void check_recordable() const;
  /// A step begins that is recorded or replayed: it gathers all that it uses. And it has ended.
  void begin_captured();
  void end_captured();
  /// It could not be recorded: what it left on the host is dropped.
  void abandon_captured();
  /// Shards were changed otherwise.
  void invalidate() { gatherer_->invalidate(); }
  void zero_grad(bool set_to_none);
  /// Those of what the optimizer steps were, by itself.
  void gradients_dropped(const torch::optim::Optimizer& optimizer);
  /// What was done to the gradients of parameters is done to those of their pieces.
  void take_gradient_changes() const { reducer_->take_gradient_changes(); }
  /// Gives the piece of a parameter its part of a gradient that is averaged over the ranks already.
  void set_averaged_gradient(const at::Tensor& parameter, const at::Tensor& gradient);

  /// What optimizers step: a piece for each parameter, and parameters of ignored modules.
  std::vector<at::Tensor> pieces() const;
  /// The piece of a parameter, or nothing when it is not one of a sharded unit. A piece is its own.
  std::optional<at::Tensor> piece_of(const at::Tensor& parameter) const;
  /// By the names of their parameters, in the module's order.
  TensorDict named_pieces() const;
  /// Replaces the parameters of an optimizer by their pieces, and its state by this rank's part of it. False when it has none.
  bool adopt(torch::optim::Optimizer& optimizer);

  /// The weights and buffers of the whole model in host memory, where `keeps`; else nothing. All ranks call it.
  TensorDict full_state_dict(bool keeps) const;
  /// Takes this rank's part of whole weights, and buffers.
  void load_full_state_dict(const TensorDict& state);
  /// Takes this rank's shards of all units, and what each rank holds whole.
  void load_shards(const std::vector<at::Tensor>& shards, const TensorDict& whole);
  /// Whether save_state writes the shards of each rank, or the whole model.
  bool saves_shards() const;
  /// Whether this rank holds the first copy of its shards: those of others are the same.
  bool has_first_copy() const { return !replicate_ || replicate_->process_index() == 0; }

  /// A tensor that has an element for each of a parameter's, on all ranks in pieces like the parameter: for optimizer state.
  struct Place {
    size_t unit, weight;
  };
  /// What the module has under one name, and its place, if it is sharded: names that are tied have one.
  struct Entry {
    std::string name;
    at::Tensor tensor;
    std::optional<Place> place;
  };
  /// Weights and buffers in the order of state_dict.
  std::vector<Entry> entries() const;
  std::optional<Place> place_of(const at::Tensor& piece) const;
  /// This rank's part of a tensor that is shaped like the parameter.
  at::Tensor part_of(const at::Tensor& full, const Place& place) const;
  const std::vector<std::shared_ptr<ShardedUnit>>& units() const { return units_; }
  /// The ranks that hold one copy of the weights.
  const ProcessState& shard_group() const { return shard_; }
  /// The flat vector of a unit of which `shard` is this rank's part. All ranks of the group call it.
  at::Tensor gather_shards(const ShardedUnit& unit, const at::Tensor& shard, const char* call) const;

  int64_t local_bytes() const;
  int64_t total_bytes() const { return total_bytes_; }
  const ShardGatherer& gatherer() const { return *gatherer_; }

 private:
  void check_storages() const;
  void join_groups();
  void shard_unit(const UnitPlan& plan, bool broadcasts);
  void keep_whole(at::Tensor parameter);

  const std::shared_ptr<torch::nn::Module> module_;
  const ProcessState world_;
  const FsdpOptions options_;
  const std::source_location where_;
  ProcessState shard_;
  std::optional<ProcessState> replicate_;
  std::vector<std::shared_ptr<ShardedUnit>> units_;
  std::vector<NamedWeight> whole_;
  std::shared_ptr<ShardGatherer> gatherer_;
  std::shared_ptr<GradientViews> views_;
  std::shared_ptr<GradientReducer> reducer_;
  std::unordered_map<const void*, Place> places_;  // by parameters and by their pieces
  int64_t total_bytes_ = 0;
  bool has_optimizer_ = false;
};

}  // namespace accelerate::detail
