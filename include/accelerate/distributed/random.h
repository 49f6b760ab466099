#pragma once

#include <ATen/core/Generator.h>
#include <accelerate/distributed/process_state.h>

#include <optional>
#include <vector>

namespace accelerate {

struct SeedOptions {
  /// Add the process's index to the seed, so that every process draws other numbers.
  bool device_specific = false;
  /// Also make operators refuse what they cannot do deterministically.
  bool deterministic = false;
};

/// Seeds torch's random numbers on the CPU and on every device. Needs no accelerator: the process's index is read from
/// the environment of its launcher.
void set_seed(uint64_t seed, const SeedOptions& options = {});
/// The same for a process that knows its index.
void set_seed(uint64_t seed, const SeedOptions& options, int process_index);

/// Which random numbers to make equal: torch's own on the CPU, those of the CUDA device, or those of one generator.
enum class RngType { torch, cuda, generator };
const char* to_string(RngType type);

/// Gives every process the random state of the main process. `generator` is the one meant by RngType::generator.
void synchronize_rng_states(const ProcessState& state, const std::vector<RngType>& types,
                            std::optional<at::Generator> generator = {},
                            std::source_location where = std::source_location::current());

}  // namespace accelerate
