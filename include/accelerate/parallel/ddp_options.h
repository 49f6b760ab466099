#pragma once

namespace accelerate {

/// The dtype that gradients travel in: their own, or 16 bits.
enum class CommHook { no, fp16, bf16 };

/// How the processes of a run agree on gradients. The names are those of Python's DistributedDataParallelKwargs.
struct DdpOptions {
  /// Every process starts a forward pass with the buffers of the main process.
  bool broadcast_buffers = true;
  /// Gradients travel in buckets of about this many MiB, so that the first ones leave while the last are being calculated.
  int bucket_cap_mb = 25;
  /// Parameters that a forward pass does not use are looked for, and need no gradient. Without it they are an error.
  bool find_unused_parameters = false;
  /// Gradients live in the buckets: less memory and fewer copies, but they must not be detached.
  bool gradient_as_bucket_view = false;
  /// The same parameters take part in every step, however often each: unused ones are found once.
  bool static_graph = false;
  /// What gradients are converted to for their journey.
  CommHook comm_hook = CommHook::no;
  /// What they are converted to before the hook sees them, and after it. Without a hook it has no effect, as in Python.
  CommHook comm_wrapper = CommHook::no;
};

namespace detail {
/// UsageError when a value cannot mean anything.
void check_ddp_options(const DdpOptions& options);
}  // namespace detail

}  // namespace accelerate
