#include "parallel/compress_hook.h"

namespace accelerate::detail {

c10::intrusive_ptr<c10::ivalue::Future> CompressHook::runHook(c10d::GradBucket& bucket) {
  const at::Tensor gradients = bucket.getBuffer();
  at::Tensor small = gradients.to(dtype_.value_or(gradients.scalar_type()));
  // Divided before they are added up: 16 bits overflow soon.
  small.div_(predivide_);
  std::vector<at::Tensor> tensors = {small};
  const auto sum = group_->allreduce(tensors)->getFuture();
  return sum->then(
      [gradients, rest = group_->getSize() / predivide_](c10::ivalue::Future& done) {
        gradients.copy_(c10d::detail::parseCppCommHookResult(done.value()));
        if (rest != 1) gradients.div_(rest);
        return c10::IValue(gradients);
      },
      c10::TensorType::get());
}

}  // namespace accelerate::detail
