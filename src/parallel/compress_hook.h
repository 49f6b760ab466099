#pragma once

#include <optional>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace accelerate::detail {

/// Sends the gradients of a bucket in another dtype, or in their own: converted, divided, added up, divided again so that the
/// mean over all processes comes out, and converted back.
class CompressHook : public c10d::CommHookInterface {
 public:
  /// `predivide` is what gradients are divided by before they are added up; 0: the number of processes.
  CompressHook(c10::intrusive_ptr<c10d::ProcessGroup> group, std::optional<at::ScalarType> dtype, double predivide)
      : group_(std::move(group)), dtype_(dtype), predivide_(predivide == 0 ? group_->getSize() : predivide) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override { return c10d::detail::parseCppCommHookResult(result); }

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const std::optional<at::ScalarType> dtype_;
  const double predivide_;
};

}  // namespace accelerate::detail
