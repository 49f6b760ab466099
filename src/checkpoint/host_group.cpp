#include "checkpoint/host_group.h"

#include <ATen/ops/from_blob.h>
#include <accelerate/distributed/collectives.h>

#include <algorithm>

#include "distributed/communicator.h"

namespace accelerate::detail {

std::vector<int> first_ranks_of_hosts(const ProcessState& state, std::source_location where) {
  const auto local_ranks = gather_object(state, std::vector<int64_t>{state.local_process_index()}, where);
  std::vector<int> firsts(local_ranks.size(), 0);
  for (size_t i = 1; i < firsts.size(); ++i) firsts[i] = local_ranks[i] == 0 ? static_cast<int>(i) : firsts[i - 1];
  return firsts;
}

ProcessState host_group(const ProcessState& state, std::source_location where) {
  const auto firsts = first_ranks_of_hosts(state, where);
  return firsts.back() == 0 ? state : state.split_group(firsts[static_cast<size_t>(state.process_index())], where);
}

void broadcast_memory(const ProcessState& group, void* bytes, uint64_t size, const char* call, std::source_location where) {
  constexpr uint64_t kPart = uint64_t{64} << 20;  // what the transport copies of it at a time
  if (!group.use_distributed()) return;
  for (uint64_t offset = 0; offset < size; offset += kPart) {
    auto part =
        at::from_blob(static_cast<char*>(bytes) + offset, {static_cast<int64_t>(std::min(kPart, size - offset))}, at::kByte);
    group.communicator()->broadcast(part, 0, call, where);
  }
}

}  // namespace accelerate::detail
