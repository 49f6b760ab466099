#include <accelerate/core/error.h>
#include <accelerate/parallel/ddp_options.h>

#include <cmath>
#include <string>

namespace accelerate::detail {
namespace {

std::string in_words(CommHook hook) { return "number " + std::to_string(static_cast<int>(hook)); }

void check_power_sgd(const DdpOptions& ddp) {
  const PowerSgdOptions& options = ddp.comm_state_option;
  if (ddp.gradient_predivide_factor != 0) {
    throw UsageError("gradient_predivide_factor has no effect on PowerSGD, whose factors are normalized: leave it at 0.");
  }
  if (ddp.bucket_cap_mb == 0 && (options.use_error_feedback || options.warm_start)) {
    throw UsageError(
        "bucket_cap_mb is 0, but PowerSGD keeps state per bucket, and a resumed run needs the same buckets: set their size.");
  }
  if (options.matrix_approximation_rank < 1) {
    throw UsageError("matrix_approximation_rank is " + std::to_string(options.matrix_approximation_rank) +
                     ": expected at least 1.");
  }
  if ((options.use_error_feedback || options.warm_start) && options.start_powerSGD_iter < 2) {
    throw UsageError("start_powerSGD_iter is " + std::to_string(options.start_powerSGD_iter) +
                     ": error feedback and a warm start need at least 2, since buckets change after the first all-reduce.");
  }
  if (!(options.min_compression_rate >= 0)) {
    throw UsageError("min_compression_rate is " + std::to_string(options.min_compression_rate) + ": expected 0 or more.");
  }
  if (!(options.orthogonalization_epsilon >= 0)) {
    throw UsageError("orthogonalization_epsilon is " + std::to_string(options.orthogonalization_epsilon) +
                     ": expected 0 or more.");
  }
}

}  // namespace

void check_ddp_options(const DdpOptions& options) {
  if (options.bucket_cap_mb < 0) {
    throw UsageError("bucket_cap_mb is " + std::to_string(options.bucket_cap_mb) +
                     ": expected at least 1 (MiB), or 0 to choose by the speed of all-reduces. The default is 25.");
  }
  if (options.comm_hook < CommHook::no || options.comm_hook > CommHook::batched_power_sgd) {
    throw UsageError("comm_hook is " + in_words(options.comm_hook) +
                     ", which is none of CommHook::no, fp16, bf16, power_sgd and batched_power_sgd.");
  }
  if (options.comm_wrapper < CommHook::no || options.comm_wrapper > CommHook::bf16) {
    throw UsageError("comm_wrapper is " + in_words(options.comm_wrapper) + ", which is none of CommHook::no, fp16 and bf16.");
  }
  if (!(options.gradient_predivide_factor >= 0) || std::isinf(options.gradient_predivide_factor)) {
    throw UsageError("gradient_predivide_factor is " + std::to_string(options.gradient_predivide_factor) +
                     ": expected a number above 0, or 0 for the number of processes.");
  }
  if (options.comm_hook >= CommHook::power_sgd) check_power_sgd(options);
}

}  // namespace accelerate::detail
