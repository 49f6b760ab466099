#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace accelerate {

/// What is sharded over the ranks. `full_shard` is ZeRO-3: weights, gradients and optimizer state. `shard_grad_op` is ZeRO-2:
/// weights stay whole from the forward pass to the backward pass. `no_shard` is plain data parallelism. The hybrid ones shard
/// inside of groups of ranks, by default those of a host, and replicate across them.
enum class ShardingStrategy { full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2 };
const char* to_string(ShardingStrategy strategy);

/// When the weights of the unit that a backward pass needs next are gathered: before the gradients of the present one are
/// computed, after that, or when they are needed.
enum class BackwardPrefetch { backward_pre, backward_post, no_prefetch };
const char* to_string(BackwardPrefetch prefetch);

/// What save_state and get_state_dict make of a sharded model: the whole weights on the main process, or the shards of each rank.
enum class StateDictType { full, sharded };
const char* to_string(StateDictType type);

/// In which dtypes a sharded model computes and reduces. Shards and optimizer state keep the dtype that the parameters were
/// prepared with.
struct FsdpMixedPrecision {
  /// What weights are gathered and computed in.
  std::optional<c10::ScalarType> param_dtype = {};
  /// What gradients are reduced in. Not given: param_dtype.
  std::optional<c10::ScalarType> reduce_dtype = {};

  friend bool operator==(const FsdpMixedPrecision&, const FsdpMixedPrecision&) = default;
};

/// How a model is sharded. The names are those of Python's FullyShardedDataParallelPlugin, for versions 1 and 2 of FSDP.
struct FsdpOptions {
  ShardingStrategy sharding_strategy = ShardingStrategy::full_shard;
  /// FSDP2's spelling: true is full_shard, false is shard_grad_op. Not given: as sharding_strategy says.
  std::optional<bool> reshard_after_forward = {};
  /// For the hybrid strategies: how many ranks hold one copy of the weights. 0: the ranks of a host.
  int shard_group_size = 0;
  /// Modules of these classes are units, which are gathered and resharded as a whole. What is between them in the order of the
  /// module's parameters is a unit too. Names match in full or by their last component, with or without `Impl`.
  std::vector<std::string> transformer_layer_classes = {};
  /// Modules of at least so many parameters are units (SIZE_BASED_WRAP). With neither of the two the whole model is one unit.
  int64_t min_num_params = 0;
  /// Modules that stay whole on each rank, as regular expressions that match their full names. Their gradients are averaged.
  std::vector<std::string> ignored_modules = {};
  BackwardPrefetch backward_prefetch = BackwardPrefetch::backward_pre;
  /// Gather the unit that a forward pass is expected to need next while the present one computes.
  bool forward_prefetch = true;
  /// Hold at most one whole unit beside the one in use. Off: two.
  bool limit_all_gathers = true;
  /// Not given: what the accelerator's mixed_precision says, for weights and gradients.
  std::optional<FsdpMixedPrecision> mixed_precision = {};
  /// Keep shards and optimizer state in host memory, where the optimizer steps.
  bool cpu_offload = false;
  /// Keep them in files of this folder instead, on a disk of the host: what is not in use need not fit into host memory.
  std::string offload_folder = {};
  /// Begin with the weights of the main process on all ranks.
  bool sync_module_states = true;
  /// Not given: full for version 1 of FSDP, sharded for version 2.
  std::optional<StateDictType> state_dict_type = {};
  /// Units of `transformer_layer_classes` keep no activations for the backward pass, and compute them again.
  bool activation_checkpointing = false;
  /// Keep what activation checkpointing saves in host memory.
  bool activation_checkpointing_offload = false;
  /// The keys that were given are those of this version.
  int version = 1;

  friend bool operator==(const FsdpOptions&, const FsdpOptions&) = default;
};

}  // namespace accelerate
