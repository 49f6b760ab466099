#include "training/step_verdict.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace accelerate::detail {

void StepVerdict::ask(const at::Tensor& found_inf) {
  const bool on_host = found_inf.is_cpu();
  device_ = found_inf.device();
  if (!report_.defined()) {
    report_ = at::empty({}, at::TensorOptions().dtype(at::kFloat).pinned_memory(!on_host));
    if (!on_host) arrived_.emplace(found_inf.device().type());
  }
  report_.copy_(found_inf, /*non_blocking=*/true);
}

void StepVerdict::expect() {
  if (!arrived_) return;
  arrived_->record(c10::impl::VirtualGuardImpl(device_->type()).getStream(*device_));
}

bool StepVerdict::skipped() {
  if (arrived_) arrived_->synchronize();
  return *report_.const_data_ptr<float>() != 0;
}

}  // namespace accelerate::detail
