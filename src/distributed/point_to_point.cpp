#include <accelerate/core/error.h>
#include <accelerate/distributed/point_to_point.h>

#include "distributed/communicator.h"
#include "distributed/plain_tensor.h"
#include "distributed/tensor_text.h"

namespace accelerate {

using namespace detail;
namespace {

/// `what`: "send: to_process".
void check_peer(const ProcessState& state, int peer, const char* what) {
  const std::string given = std::string(what) + "=" + std::to_string(peer);
  if (peer < 0 || peer >= state.num_processes()) {
    throw UsageError(given + " is out of range: there are " + std::to_string(state.num_processes()) +
                     " processes, numbered from 0.");
  }
  if (peer == state.process_index()) throw UsageError(given + " is this process itself: name another one.");
}

}  // namespace

void send(const ProcessState& state, const at::Tensor& tensor, int to_process, std::source_location where) {
  check_peer(state, to_process, "send: to_process");
  if (const auto problem = unsendable(tensor); !problem.empty())
    throw UsageError("send takes dense tensors and was given " + problem + ".");
  state.communicator()->send(plain(tensor), to_process, where);
}

at::Tensor recv(const ProcessState& state, int from_process, std::source_location where) {
  check_peer(state, from_process, "recv: from_process");
  return state.communicator()->receive(from_process, state.device(), where);
}

}  // namespace accelerate
