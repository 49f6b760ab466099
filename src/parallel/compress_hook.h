#pragma once

#include <torch/csrc/distributed/c10d/comm.hpp>

namespace accelerate::detail {

/// Sends the gradients of a bucket in another dtype: converted, divided by the number of processes, added up, and converted back.
class CompressHook : public c10d::CommHookInterface {
 public:
  CompressHook(c10::intrusive_ptr<c10d::ProcessGroup> group, at::ScalarType dtype) : group_(std::move(group)), dtype_(dtype) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override { return c10d::detail::parseCppCommHookResult(result); }

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const at::ScalarType dtype_;
};

}  // namespace accelerate::detail
