#pragma once

#include <accelerate/parallel/ddp_options.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace accelerate::detail {

/// Sends the gradients of a bucket in 16 bits: converted, divided by the number of processes, added up, and converted back.
class CompressHook : public c10d::CommHookInterface {
 public:
  /// `hook` is fp16 or bf16. Gradients are first converted to what `wrapper` says, and so is the result.
  CompressHook(c10::intrusive_ptr<c10d::ProcessGroup> group, CommHook hook, CommHook wrapper)
      : group_(std::move(group)), hook_(hook), wrapper_(wrapper) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override { return c10d::detail::parseCppCommHookResult(result); }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  CommHook hook_;
  CommHook wrapper_;
};

}  // namespace accelerate::detail
