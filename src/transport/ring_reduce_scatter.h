#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <memory>

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace accelerate::detail {

/// Reduce-scatters of CPU tensors over a backend's send and receive, around a ring: each rank sends (N-1)/N of its input. Gloo's
/// own all-reduces a copy of the whole input, twice as much. They run one after the other on a thread of its own, which starts
/// with the first one.
class RingReduceScatter {
 public:
  /// `backend` outlives it.
  explicit RingReduceScatter(c10d::Backend& backend);
  /// Waits for what was started.
  ~RingReduceScatter();
  RingReduceScatter(const RingReduceScatter&) = delete;
  RingReduceScatter& operator=(const RingReduceScatter&) = delete;

  /// Part `rank` of the inputs of all ranks, reduced, in `output`; both are contiguous, and `input` is not changed. The tensors
  /// are used until the work has ended.
  c10::intrusive_ptr<c10d::Work> start(const at::Tensor& output, const at::Tensor& input, c10d::ReduceOp::RedOpType operation);

 private:
  class Queue;
  std::unique_ptr<Queue> queue_;
};

}  // namespace accelerate::detail
