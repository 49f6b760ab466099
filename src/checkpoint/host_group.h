#pragma once

#include <accelerate/distributed/process_state.h>

#include <cstdint>
#include <source_location>
#include <vector>

/// The ranks of one host, of which the first may read what all of them need.
namespace accelerate::detail {

/// For each rank the first one of its host. A collective.
std::vector<int> first_ranks_of_hosts(const ProcessState& state, std::source_location where);

/// The ranks of this host as a group of their own, or `state` itself where there is one host alone. A collective of all ranks.
ProcessState host_group(const ProcessState& state, std::source_location where);

/// Gives all ranks of a group the bytes of its first one. `bytes` are as many on each.
void broadcast_memory(const ProcessState& group, void* bytes, uint64_t size, const char* call, std::source_location where);

}  // namespace accelerate::detail
