#pragma once

#include <accelerate/core/launch_environment.h>

#include <optional>

namespace accelerate::detail {

/// How the ranks of a run are laid out: `dp_replicate` copies of the model, each sharded over `dp_shard` ranks.
struct ParallelismSizes {
  int dp_replicate = 1;
  int dp_shard = 1;

  friend bool operator==(const ParallelismSizes&, const ParallelismSizes&) = default;
};

/// The sizes in the PARALLELISM_CONFIG_* variables; nothing unless ACCELERATE_USE_PARALLELISM_CONFIG is true. ConfigError for
/// sizes below 1, for tensor, context and sequence parallelism, which C++ programs do not support, and where the sizes do not
/// multiply to the world size that the environment gives.
std::optional<ParallelismSizes> parallelism_sizes_from(const Environment& environment);

}  // namespace accelerate::detail
