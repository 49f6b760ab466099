#pragma once

#include <ATen/core/TensorBody.h>
#include <accelerate/distributed/process_state.h>

/// Tensors from one process to another. Only these two take part, so unlike collectives these are no calls that all processes
/// make. Accelerator has them as members.
namespace accelerate {

/// Sends `tensor` to process `to_process`, which calls `recv`. Returns when it may be changed again, which may be when it has
/// been received: of two processes that send to each other one must receive first. Messages between two processes arrive in
/// order. DistributedError names a process that is gone. UsageError for this process itself, or a tensor that is not dense.
void send(const ProcessState& state, const at::Tensor& tensor, int to_process,
          std::source_location where = std::source_location::current());

/// The next tensor that process `from_process` sends here, with its dtype and shape. A CPU tensor arrives as one, any other on
/// state.device().
at::Tensor recv(const ProcessState& state, int from_process, std::source_location where = std::source_location::current());

}  // namespace accelerate
