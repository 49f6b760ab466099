#pragma once

#include <accelerate/parallel/power_sgd_options.h>

namespace accelerate {

/// How gradients are compressed for the all-reduce: not at all, to 16 bits, or to low-rank factors of the gradient of a parameter
/// (power_sgd), or of a whole bucket (batched_power_sgd).
enum class CommHook { no, fp16, bf16, power_sgd, batched_power_sgd };

/// How gradients are all-reduced. The names are those of Python's DistributedDataParallelKwargs.
struct DdpOptions {
  /// Broadcast the buffers of the main process before each forward pass.
  bool broadcast_buffers = true;
  /// Gradients are all-reduced in buckets of about this many MiB, overlapping with the rest of the backward pass. 0: the
  /// main process chooses by the speed of all-reduces, measured in prepare.
  int bucket_cap_mb = 25;
  /// Find parameters that a forward pass does not use; they need no gradient. Without it they are an error.
  bool find_unused_parameters = false;
  /// Gradients are views of the buckets: less memory and fewer copies, but they must not be detached.
  bool gradient_as_bucket_view = false;
  /// The same parameters take part in every step, however often each: unused ones are found once.
  bool static_graph = false;
  /// How gradients are compressed.
  CommHook comm_hook = CommHook::no;
  /// What they are converted to before the hook sees them: no, fp16 or bf16. Without a hook it has no effect, as in Python.
  CommHook comm_wrapper = CommHook::no;
  /// Gradients are divided by this before they are added up, and by the rest of the number of processes afterwards: between 1
  /// (16 bits may overflow) and the number of processes (they may underflow). 0: all of it before, as in Python. Not for
  /// PowerSGD.
  double gradient_predivide_factor = 0;
  /// For power_sgd and batched_power_sgd.
  PowerSgdOptions comm_state_option = {};
};

namespace detail {
/// UsageError when a value is invalid.
void check_ddp_options(const DdpOptions& options);
}  // namespace detail

}  // namespace accelerate
