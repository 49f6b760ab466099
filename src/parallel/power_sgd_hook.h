#pragma once

#include <deque>
#include <memory>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "parallel/power_sgd_state.h"

namespace accelerate::detail {

class PowerSgdRound;

/// Sends gradients as products of two thin matrices (PowerSGD). The left factors of a bucket leave while the backward pass goes
/// on. The right ones need what became of those, and leave when the reducer asks for the first result: then all buckets have been
/// started, so that all processes make all all-reduces in one order.
class PowerSgdHook : public c10d::CommHookInterface {
 public:
  /// What is made into one matrix: the gradient of each parameter, or all of a bucket.
  enum class Matrix { parameter, bucket };

  PowerSgdHook(c10::intrusive_ptr<c10d::ProcessGroup> group, std::shared_ptr<PowerSgdState> state, Matrix matrix);
  ~PowerSgdHook() override;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  /// Results are asked for in the order in which buckets were given.
  at::Tensor parseHookResult(const c10::IValue& result) override;

 private:
  c10::intrusive_ptr<c10::ivalue::Future> run_plain(const at::Tensor& gradients);

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const std::shared_ptr<PowerSgdState> state_;
  const Matrix matrix_;
  std::deque<std::unique_ptr<PowerSgdRound>> rounds_;  // null for a plain all-reduce
  bool right_factors_left_ = false;
};

}  // namespace accelerate::detail
