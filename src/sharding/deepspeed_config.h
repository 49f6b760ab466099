#pragma once

#include <accelerate/core/launch_environment.h>
#include <accelerate/sharding/fsdp_options.h>
#include <accelerate/training/grad_scaler.h>
#include <accelerate/training/precision.h>

#include <cstdint>
#include <optional>

namespace accelerate::detail {

/// What a DeepSpeed configuration asks of a run.
struct DeepSpeedSettings {
  /// ZeRO stage 0 is no_shard, 1 and 2 are shard_grad_op, 3 is full_shard.
  FsdpOptions fsdp = {};
  int zero_stage = 2;
  /// Nothing: "auto", that of the accelerator.
  std::optional<int> gradient_accumulation_steps = {};
  /// The norm that gradients are clipped to before each step; nothing: they are not.
  std::optional<double> gradient_clipping = {};
  Precision mixed_precision = Precision::no;
  /// How the loss is scaled under fp16.
  std::optional<GradScalerOptions> grad_scaler = {};
  /// Models are built with empty weights, of which each rank keeps its shard (deepspeed.zero.Init).
  bool zero3_init_flag = false;
  /// A saved model of stage 3 has whole weights, in 16 bits.
  bool save_16bit_model = false;
  /// Nothing: "auto".
  std::optional<int64_t> train_batch_size = {};
  std::optional<int64_t> train_micro_batch_size_per_gpu = {};
};

/// The settings in the variables that `accelerate launch --use_deepspeed` sets, and in the DeepSpeed configuration that
/// ACCELERATE_DEEPSPEED_CONFIG_FILE gives, with "auto" filled as Python fills it; nothing unless ACCELERATE_USE_DEEPSPEED is
/// true. `mixed_precision` is that of the accelerator; not given: ACCELERATE_MIXED_PRECISION. ConfigError names the variable or
/// the full path of the key, its value and what was expected: no key is ignored, but for those that only tune DeepSpeed's own
/// kernels.
std::optional<DeepSpeedSettings> deepspeed_settings_from(const Environment& environment,
                                                         std::optional<Precision> mixed_precision = {});

/// ConfigError when a `train_batch_size` that was given is not what a step of this run takes. A `micro_batch` that is not given
/// here is that of the settings; unknown in both, there is nothing to compare.
void check_train_batch_size(const DeepSpeedSettings& settings, std::optional<int64_t> micro_batch,
                            int gradient_accumulation_steps, int num_processes);

}  // namespace accelerate::detail
