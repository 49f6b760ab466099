#pragma once

#include <deque>
#include <memory>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace accelerate::detail {

/// Shows a hook the gradients in another dtype, and converts its results back.
class WrappedHook : public c10d::CommHookInterface {
 public:
  WrappedHook(std::unique_ptr<c10d::CommHookInterface> hook, at::ScalarType dtype) : hook_(std::move(hook)), dtype_(dtype) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  /// Results are asked for in the order in which buckets were given.
  at::Tensor parseHookResult(const c10::IValue& result) override;

 private:
  const std::unique_ptr<c10d::CommHookInterface> hook_;
  const at::ScalarType dtype_;
  std::deque<at::Tensor> gradients_;
};

}  // namespace accelerate::detail
