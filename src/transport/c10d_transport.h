#pragma once

#include <memory>

#include "rendezvous/c10d_compat.h"
#include "transport/awaited_works.h"
#include "transport/ring_reduce_scatter.h"
#include "transport/transport.h"

namespace accelerate::detail {

/// The transport over the backends of a c10d group: gloo for CPU tensors, NCCL for CUDA tensors, or what an application chose.
class C10dTransport : public Transport {
 public:
  /// `device_backend`: the one for CUDA tensors where it is not the one for CPU tensors: it wants to be told of the end.
  /// UsageError when the group has no backend for CPU tensors.
  explicit C10dTransport(c10::intrusive_ptr<c10d::ProcessGroup> group, c10::intrusive_ptr<c10d::Backend> device_backend = {});

  std::string backend_name(at::DeviceType device) const override;
  bool runs_on_host(at::DeviceType device) const override;
  StartedCollective barrier() override;
  StartedCollective all_gather(at::Tensor& output, at::Tensor& input) override;
  StartedCollective all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& operation) override;
  StartedCollective broadcast(const at::Tensor& tensor, int from) override;
  StartedCollective reduce_scatter(at::Tensor& output, at::Tensor& input, const c10d::ReduceOp& operation) override;
  StartedCollective all_to_all(at::Tensor& output, at::Tensor& input) override;
  StartedCollective send(const at::Tensor& tensor, int to, int tag) override;
  StartedCollective receive(const at::Tensor& tensor, int from, int tag) override;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group() const override { return group_; }
  void close(bool aborts) noexcept override;

 private:
  c10d::Backend& backend_for(at::DeviceType device) const;
  template <class Start>
  StartedCollective start(at::DeviceType device, Start&& start_on);

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  c10::intrusive_ptr<c10d::Backend> device_backend_, cpu_backend_;
  std::unique_ptr<RingReduceScatter> ring_;  // over cpu_backend_
  std::unique_ptr<AwaitedWorks> awaited_;    // of cpu_backend_
};

}  // namespace accelerate::detail
