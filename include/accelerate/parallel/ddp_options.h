#pragma once

#include <accelerate/parallel/power_sgd_options.h>

namespace accelerate {

/// How gradients travel: as they are, in 16 bits, or as two thin matrices whose product is nearly the gradient of a parameter
/// (power_sgd), or of all that travel together (batched_power_sgd).
enum class CommHook { no, fp16, bf16, power_sgd, batched_power_sgd };

/// How the processes of a run agree on gradients. The names are those of Python's DistributedDataParallelKwargs.
struct DdpOptions {
  /// Every process starts a forward pass with the buffers of the main process.
  bool broadcast_buffers = true;
  /// Gradients travel in buckets of about this many MiB, so that the first ones leave while the last are being calculated. 0: the
  /// main process chooses by how fast all-reduces are, which takes a moment in prepare.
  int bucket_cap_mb = 25;
  /// Parameters that a forward pass does not use are looked for, and need no gradient. Without it they are an error.
  bool find_unused_parameters = false;
  /// Gradients live in the buckets: less memory and fewer copies, but they must not be detached.
  bool gradient_as_bucket_view = false;
  /// The same parameters take part in every step, however often each: unused ones are found once.
  bool static_graph = false;
  /// What gradients become for their journey.
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
/// UsageError when a value cannot mean anything.
void check_ddp_options(const DdpOptions& options);
}  // namespace detail

}  // namespace accelerate
