#include "parallel/compress_hook.h"

namespace accelerate::detail {

c10::intrusive_ptr<c10::ivalue::Future> CompressHook::runHook(c10d::GradBucket& bucket) {
  const at::Tensor gradients = bucket.getBuffer();
  at::Tensor small = gradients.to(dtype_);
  // A bucket that is of this dtype already still belongs to the reducer.
  if (small.is_alias_of(gradients)) small = small.clone();
  // Divided before they are added up: 16 bits overflow soon.
  small.div_(group_->getSize());
  std::vector<at::Tensor> tensors = {small};
  const auto sum = group_->allreduce(tensors)->getFuture();
  return sum->then(
      [gradients](c10::ivalue::Future& done) {
        gradients.copy_(c10d::detail::parseCppCommHookResult(done.value()));
        return c10::IValue(gradients);
      },
      c10::TensorType::get());
}

}  // namespace accelerate::detail
