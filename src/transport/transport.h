#pragma once

#include <c10/core/DeviceType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <string>

namespace c10d {
class ProcessGroup;
class Work;
}  // namespace c10d

namespace accelerate::detail {

/// A collective that has been started. Its wait() throws what went wrong; tensors hold the result from then on. Never null.
using StartedCollective = c10::intrusive_ptr<c10d::Work>;

/// Moves the tensors of one group's collectives: what a backend must implement. It neither counts calls nor tells failures:
/// `Communicator` does, and sees to it that tensors are contiguous and dense. Objects and barriers travel as CPU tensors, so
/// every transport serves the CPU, beside the devices it is made for.
class Transport {
 public:
  Transport(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // UsageError when tensors of this device type cannot be sent.
  virtual std::string backend_name(at::DeviceType device) const = 0;
  /// True when the host moves them: a waiting rank can check meanwhile whether the group is lost, and give up.
  virtual bool runs_on_host(at::DeviceType device) const = 0;

  // Each starts a collective of tensors of one device type, and may be called by several threads.
  /// Of no tensor: on the host.
  virtual StartedCollective barrier() = 0;
  /// `output` holds the `input` of each rank, one after the other.
  virtual StartedCollective all_gather(at::Tensor& output, at::Tensor& input) = 0;
  virtual StartedCollective all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& operation) = 0;
  virtual StartedCollective broadcast(const at::Tensor& tensor, int from) = 0;
  /// Part i of the inputs of all ranks, reduced, in the `output` of rank i. `input` is not changed.
  virtual StartedCollective reduce_scatter(at::Tensor& output, at::Tensor& input, const c10d::ReduceOp& operation) = 0;
  /// Part i of `input` goes to rank i, and part i of `output` comes from there; all parts are equal. Throws, on all ranks and
  /// with nothing sent, where a backend cannot.
  virtual StartedCollective all_to_all(at::Tensor& output, at::Tensor& input) = 0;

  // Between two ranks. Only works of one pair and `tag` are in order, and each send needs its receive to end.
  virtual StartedCollective send(const at::Tensor& tensor, int to, int tag) = 0;
  virtual StartedCollective receive(const at::Tensor& tensor, int from, int tag) = 0;

  /// The group that c10d's reducer of gradients starts its collectives in.
  virtual c10::intrusive_ptr<c10d::ProcessGroup> process_group() const = 0;

  /// Ends the group, before the rendezvous store of its ranks. Nothing is started after it. `aborts`: collectives of a device
  /// that are still under way are ended too, because not all ranks have joined them. A transport with a collective on the host
  /// that cannot end is not closed: its end would wait.
  virtual void close(bool aborts) noexcept = 0;

 private:
  const int rank_, size_;
};

}  // namespace accelerate::detail
