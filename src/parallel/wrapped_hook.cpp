#include "parallel/wrapped_hook.h"

namespace accelerate::detail {

c10::intrusive_ptr<c10::ivalue::Future> WrappedHook::runHook(c10d::GradBucket& bucket) {
  // A backward pass that failed may have left some.
  if (bucket.getIndex() == 0) gradients_.clear();
  gradients_.push_back(bucket.getBuffer());
  at::Tensor converted = bucket.getBuffer().to(dtype_);
  bucket.setBuffer(converted);
  return hook_->runHook(bucket);
}

at::Tensor WrappedHook::parseHookResult(const c10::IValue& result) {
  const at::Tensor converted = hook_->parseHookResult(result);
  const at::Tensor gradients = gradients_.front();
  gradients_.pop_front();
  gradients.copy_(converted);
  return gradients;
}

}  // namespace accelerate::detail
