#pragma once

#include <memory>

#include "support/held_port.h"
#include "support/run_program.h"

namespace accelerate::testing {

using Variables = std::map<std::string, std::optional<std::string>>;

/// The ranks of a run on the CPU, started without a launcher, which would end the survivors before they can tell what they saw.
/// `per_machine` of them share a machine; 0: all do.
inline std::vector<std::unique_ptr<RunningProgram>> start_ranks(const std::vector<std::string>& command, int size,
                                                                const Variables& variables = {}, int per_machine = 0) {
  const auto port = std::make_shared<HeldPort>();
  if (per_machine == 0) per_machine = size;
  std::vector<std::unique_ptr<RunningProgram>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    Variables table = variables;
    table.insert({{"ACCELERATE_USE_CPU", "true"},
                  {"OMP_NUM_THREADS", "1"},
                  {"GLOO_SOCKET_IFNAME", "lo"},
                  {"RANK", std::to_string(rank)},
                  {"WORLD_SIZE", std::to_string(size)},
                  {"LOCAL_RANK", std::to_string(rank % per_machine)},
                  {"LOCAL_WORLD_SIZE", std::to_string(per_machine)},
                  {"GROUP_RANK", std::to_string(rank / per_machine)},
                  {"MASTER_ADDR", "127.0.0.1"},
                  {"MASTER_PORT", port->text()}});
    ranks.push_back(std::make_unique<RunningProgram>(command, RunOptions{.environment = table, .kept = port}));
  }
  return ranks;
}

}  // namespace accelerate::testing
