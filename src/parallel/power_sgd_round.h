#pragma once

#include <torch/csrc/distributed/c10d/comm.hpp>
#include <vector>

#include "parallel/power_sgd_state.h"

namespace accelerate::detail {

/// One all-reduce of one bucket by PowerSGD, in three parts.
class PowerSgdRound {
 public:
  /// Each parameter's gradient is a matrix, or, when `as_one_matrix`, all of the bucket is a square one.
  PowerSgdRound(c10::intrusive_ptr<c10d::ProcessGroup> group, PowerSgdState& state, const c10d::GradBucket& bucket,
                bool as_one_matrix);

  /// What is not compressed and the left factors are on their way. Returns the all-reduce that ends last.
  c10::intrusive_ptr<c10d::Work> send_left_factors();
  /// They are here, and the right factors on their way.
  void send_right_factors();
  /// All is here: the gradients of the bucket.
  at::Tensor finish();

 private:
  /// Matrices of one shape that are multiplied in one call: (number, rows, columns), and views of the factors.
  struct Batch {
    at::Tensor matrices, left, right;
    /// Where to copy the matrices to in the end; empty when they are the bucket's own memory.
    std::vector<at::Tensor> parts;
  };

  void take_parameters(const std::vector<at::Tensor>& gradients);
  void add_batch(at::Tensor matrices, std::vector<at::Tensor> parts);
  void make_factors();
  void check_fit(const at::Tensor& remembered, int64_t length) const;
  c10::intrusive_ptr<c10d::Work> all_reduce(at::Tensor& tensor);

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  PowerSgdState& state_;
  const size_t bucket_;
  const at::Tensor gradients_;
  /// The gradients, or a copy with zeros behind them.
  at::Tensor content_;
  at::Tensor before_;  // content_ as it was to be sent
  std::vector<at::Tensor> uncompressed_;
  std::vector<Batch> batches_;
  at::Tensor plain_, left_, right_;  // each one's memory in one piece
  c10::intrusive_ptr<c10d::Work> plain_work_, left_work_, right_work_;
};

}  // namespace accelerate::detail
