#include "parallel/comm_hook.h"

#include "parallel/compress_hook.h"
#include "parallel/power_sgd_hook.h"
#include "parallel/wrapped_hook.h"

namespace accelerate::detail {
namespace {

at::ScalarType dtype_of_hook(CommHook hook) { return hook == CommHook::fp16 ? at::kHalf : at::kBFloat16; }

}  // namespace

ChosenHook choose_comm_hook(const DdpOptions& options, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  ChosenHook chosen;
  switch (options.comm_hook) {
    case CommHook::no:
      if (options.gradient_predivide_factor != 0) {
        chosen.hook = std::make_unique<CompressHook>(group, std::nullopt, options.gradient_predivide_factor);
      }
      return chosen;
    case CommHook::fp16:
    case CommHook::bf16:
      chosen.hook = std::make_unique<CompressHook>(group, dtype_of_hook(options.comm_hook), options.gradient_predivide_factor);
      break;
    case CommHook::power_sgd:
    case CommHook::batched_power_sgd:
      chosen.state = std::make_shared<PowerSgdState>(options.comm_state_option);
      chosen.hook = std::make_unique<PowerSgdHook>(
          group, chosen.state,
          options.comm_hook == CommHook::power_sgd ? PowerSgdHook::Matrix::parameter : PowerSgdHook::Matrix::bucket);
      break;
  }
  if (options.comm_wrapper != CommHook::no) {
    chosen.hook = std::make_unique<WrappedHook>(std::move(chosen.hook), dtype_of_hook(options.comm_wrapper));
  }
  return chosen;
}

}  // namespace accelerate::detail
