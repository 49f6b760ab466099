#include <accelerate/sharding/fsdp_options.h>

#include <array>

namespace accelerate {

const char* to_string(ShardingStrategy strategy) {
  static constexpr std::array kNames = {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"};
  return kNames[static_cast<size_t>(strategy)];
}

const char* to_string(BackwardPrefetch prefetch) {
  static constexpr std::array kNames = {"backward_pre", "backward_post", "no_prefetch"};
  return kNames[static_cast<size_t>(prefetch)];
}

const char* to_string(StateDictType type) {
  static constexpr std::array kNames = {"full_state_dict", "sharded_state_dict"};
  return kNames[static_cast<size_t>(type)];
}

}  // namespace accelerate
