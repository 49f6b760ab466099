#include "transport/c10d_transport.h"

#include <accelerate/core/error.h>

#include <mutex>

namespace accelerate::detail {
namespace {

/// c10d notes a group's first collective in a table of the whole process without a lock (2.11), so groups used by several
/// threads start theirs one at a time.
std::mutex& starting() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

C10dTransport::C10dTransport(c10::intrusive_ptr<c10d::ProcessGroup> group, c10::intrusive_ptr<c10d::Backend> device_backend)
    : Transport(group->getRank(), group->getSize()), group_(std::move(group)), device_backend_(std::move(device_backend)) {
  try {
    cpu_backend_ = group_->getBackend(at::kCPU);
  } catch (const std::exception&) {
    throw UsageError(
        "The given process group has no backend for CPU tensors, which objects and barriers need: create it with gloo as well.");
  }
  ring_ = std::make_unique<RingReduceScatter>(*cpu_backend_);
  awaited_ = std::make_unique<AwaitedWorks>();
}

c10d::Backend& C10dTransport::backend_for(at::DeviceType device) const {
  if (device == at::kCPU) return *cpu_backend_;
  try {
    return *group_->getBackend(device);
  } catch (const std::exception&) {
    throw UsageError("The process group has no backend for " + c10::DeviceTypeName(device, true) +
                     " tensors: create it with one, or use the CPU (.cpu = true).");
  }
}

std::string C10dTransport::backend_name(at::DeviceType device) const { return backend_for(device).getBackendName(); }

bool C10dTransport::runs_on_host(at::DeviceType device) const { return &backend_for(device) == cpu_backend_.get(); }

template <class Start>
StartedCollective C10dTransport::start(at::DeviceType device, Start&& start_on) {
  c10d::Backend& backend = backend_for(device);
  std::unique_lock lock(starting(), std::defer_lock);
  if (&backend == cpu_backend_.get()) lock.lock();  // only gloo starts without waiting for anybody
  return start_on(backend);
}

StartedCollective C10dTransport::barrier() {
  return start(at::kCPU, [](c10d::Backend& backend) { return backend.barrier(); });
}

StartedCollective C10dTransport::all_gather(at::Tensor& output, at::Tensor& input) {
  return start(input.device().type(), [&](c10d::Backend& backend) { return backend._allgather_base(output, input); });
}

StartedCollective C10dTransport::all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& operation) {
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  std::vector<at::Tensor> tensors = {tensor};
  return start(tensor.device().type(), [&](c10d::Backend& backend) { return backend.allreduce(tensors, options); });
}

StartedCollective C10dTransport::broadcast(const at::Tensor& tensor, int from) {
  c10d::BroadcastOptions options;
  options.rootRank = from;
  std::vector<at::Tensor> tensors = {tensor};
  return start(tensor.device().type(), [&](c10d::Backend& backend) { return backend.broadcast(tensors, options); });
}

StartedCollective C10dTransport::reduce_scatter(at::Tensor& output, at::Tensor& input, const c10d::ReduceOp& operation) {
  if (input.device().is_cpu()) return ring_->start(output, input, operation.op_);
  c10d::ReduceScatterOptions options;
  options.reduceOp = operation;
  return start(input.device().type(),
               [&](c10d::Backend& backend) { return backend._reduce_scatter_base(output, input, options); });
}

StartedCollective C10dTransport::all_to_all(at::Tensor& output, at::Tensor& input) {
  std::vector<int64_t> evenly;
  return start(input.device().type(),
               [&](c10d::Backend& backend) { return backend.alltoall_base(output, input, evenly, evenly); });
}

StartedCollective C10dTransport::send(const at::Tensor& tensor, int to, int tag) {
  std::vector<at::Tensor> tensors = {tensor};
  auto work = start(tensor.device().type(), [&](c10d::Backend& backend) { return backend.send(tensors, to, tag); });
  return runs_on_host(tensor.device().type()) ? awaited_->await(std::move(work)) : work;
}

StartedCollective C10dTransport::receive(const at::Tensor& tensor, int from, int tag) {
  std::vector<at::Tensor> tensors = {tensor};
  auto work = start(tensor.device().type(), [&](c10d::Backend& backend) { return backend.recv(tensors, from, tag); });
  return runs_on_host(tensor.device().type()) ? awaited_->await(std::move(work)) : work;
}

/// Gloo and NCCL end before their rendezvous store.
void C10dTransport::close(bool aborts) noexcept {
  try {
    if (device_backend_) aborts ? device_backend_->abort() : device_backend_->shutdown();
  } catch (const std::exception&) {
    // It failed before, or a peer did: there is nothing left to end.
  }
  ring_.reset();
  awaited_.reset();
  device_backend_.reset();
  cpu_backend_.reset();
  group_.reset();
}

}  // namespace accelerate::detail
