#include "sharding/parallelism_sizes.h"

#include <accelerate/core/error.h>

#include <cstdint>
#include <string>

namespace accelerate::detail {
namespace {

int parallel_size(const Environment& environment, const char* name) {
  const auto text = environment(name);
  if (!text) return 1;
  const auto size = integer_from(environment, {name});
  if (size.value_or(0) < 1) throw ConfigError(std::string(name) + "=" + *text + ": expected an integer of at least 1.");
  return *size;
}

void refuse_other_dimensions(const Environment& environment) {
  struct Dimension {
    const char *variable, *what;
  };
  constexpr Dimension kDimensions[] = {{"PARALLELISM_CONFIG_TP_SIZE", "tensor parallelism"},
                                       {"PARALLELISM_CONFIG_CP_SIZE", "context parallelism"},
                                       {"PARALLELISM_CONFIG_SP_SIZE", "sequence parallelism"}};
  for (const auto& dimension : kDimensions) {
    const int size = parallel_size(environment, dimension.variable);
    if (size == 1) continue;
    throw ConfigError(std::string(dimension.variable) + "=" + std::to_string(size) + " asks for " + dimension.what +
                      ", which this version does not support: expected 1. Replicas (PARALLELISM_CONFIG_DP_REPLICATE_SIZE) and "
                      "sharding (PARALLELISM_CONFIG_DP_SHARD_SIZE) are supported.");
  }
}

void check_parallel_backend(const Environment& environment, const char* name, const std::string& only) {
  const std::string backend = environment(name).value_or(only);
  if (backend != only) throw ConfigError(std::string(name) + "=" + backend + ": expected " + only + ".");
}

}  // namespace

std::optional<ParallelismSizes> parallelism_sizes_from(const Environment& environment) {
  if (!flag_from(environment, "ACCELERATE_USE_PARALLELISM_CONFIG", false)) return std::nullopt;
  refuse_other_dimensions(environment);
  check_parallel_backend(environment, "PARALLELISM_CONFIG_CP_BACKEND", "torch");
  check_parallel_backend(environment, "PARALLELISM_CONFIG_SP_BACKEND", "deepspeed");
  ParallelismSizes sizes{.dp_replicate = parallel_size(environment, "PARALLELISM_CONFIG_DP_REPLICATE_SIZE"),
                         .dp_shard = parallel_size(environment, "PARALLELISM_CONFIG_DP_SHARD_SIZE")};
  const LaunchEnvironment launch = read_launch_environment(environment);
  if (!launch.launched) return sizes;
  // As in Python: with all sizes 1 every rank is a replica.
  if (sizes == ParallelismSizes{}) sizes.dp_replicate = launch.num_processes;
  if (int64_t{sizes.dp_replicate} * sizes.dp_shard == launch.num_processes) return sizes;
  throw ConfigError("PARALLELISM_CONFIG_DP_REPLICATE_SIZE=" + std::to_string(sizes.dp_replicate) +
                    " times PARALLELISM_CONFIG_DP_SHARD_SIZE=" + std::to_string(sizes.dp_shard) +
                    " is not the number of processes, " + std::to_string(launch.num_processes) +
                    ". Change the sizes, or start as many processes.");
}

}  // namespace accelerate::detail
