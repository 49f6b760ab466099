#include "accelerator/option_resolution.h"

#include <accelerate/core/error.h>

#include "sharding/deepspeed_config.h"
#include "sharding/fsdp_environment.h"

namespace accelerate::detail {
namespace {

/// A run that was configured for it must not train in another way instead: plain data parallelism has other memory and, with
/// several kinds of parallelism, other results.
void check_supported(const Environment& environment) {
  if (flag_from(environment, "ACCELERATE_USE_MEGATRON_LM", false))
    throw ConfigError("ACCELERATE_USE_MEGATRON_LM=" + *environment("ACCELERATE_USE_MEGATRON_LM") +
                      " asks for Megatron-LM, which this version does not support. Launch without use_megatron_lm (a flag, or a "
                      "key of the config file) to train with data parallelism.");
  // With FSDP its sizes say how a model is sharded.
  if (!flag_from(environment, "ACCELERATE_USE_PARALLELISM_CONFIG", false) || flag_from(environment, "ACCELERATE_USE_FSDP", false))
    return;
  // Replicas alone are what data parallelism is.
  for (const char* variable : {"PARALLELISM_CONFIG_DP_SHARD_SIZE", "PARALLELISM_CONFIG_TP_SIZE", "PARALLELISM_CONFIG_CP_SIZE",
                               "PARALLELISM_CONFIG_SP_SIZE"}) {
    const auto size = integer_from(environment, {variable});
    if (size.value_or(1) != 1)
      throw ConfigError(std::string(variable) + "=" + std::to_string(*size) +
                        " asks for a kind of parallelism that this version does not support: only replicas "
                        "(PARALLELISM_CONFIG_DP_REPLICATE_SIZE) are. Launch without use_parallelism_config, or with sizes of 1.");
  }
}

/// Options that have no meaning yet: what was asked for and would be ignored is refused. ACCELERATE_DOWNCAST_BF16 speaks of TPUs
/// alone and is ignored elsewhere, as in Python.
void check_meaningful(const AcceleratorOptions& options) {
  if (options.downcast_bf16) {
    throw UsageError("downcast_bf16 was set: it is for XLA devices, which this version does not support. Leave it off.");
  }
  if (!options.project.logging_dir.empty()) {
    throw UsageError("project.logging_dir is '" + options.project.logging_dir +
                     "': it is for trackers, which this version does not have. Leave it empty.");
  }
}

/// DeepSpeed's keys, for the same engine as FSDP's.
void apply(const DeepSpeedSettings& settings, AcceleratorOptions& options) {
  options.fsdp = settings.fsdp;
  options.mixed_precision = settings.mixed_precision;
  if (settings.gradient_accumulation_steps) options.gradient_accumulation_steps = *settings.gradient_accumulation_steps;
  if (settings.gradient_clipping) options.gradient_clipping = settings.gradient_clipping;
  if (settings.grad_scaler) options.grad_scaler = *settings.grad_scaler;
}

/// In DeepSpeed's configuration it may be "auto": what the program says.
void check_accumulation(AcceleratorOptions& options, const Environment& environment, bool may_be_auto) {
  constexpr const char* kVariable = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS";
  const auto text = environment(kVariable);
  if (text && !(may_be_auto && *text == "auto")) {
    const int steps = integer_from(environment, {kVariable}).value_or(0);
    if (steps < 1) throw ConfigError(std::string(kVariable) + "=" + *text + ": expected an integer of at least 1.");
    options.gradient_accumulation_steps = steps;
  }
  GradientState(options.gradient_accumulation_steps);
  const auto dtype = options.gradient_accumulation.dtype;
  if (dtype && !c10::isFloatingType(*dtype)) {
    throw UsageError(std::string("gradient_accumulation.dtype is ") + c10::toString(*dtype) +
                     ": expected a floating-point dtype.");
  }
}

}  // namespace

std::shared_ptr<const DeepSpeedSettings> resolve_options(AcceleratorOptions& options, const Environment& environment) {
  check_meaningful(options);
  check_supported(environment);
  const auto deepspeed = deepspeed_settings_from(environment, options.mixed_precision);
  if (deepspeed) {
    if (options.fsdp) throw ConfigError("ACCELERATE_USE_DEEPSPEED is on, and the program gives FsdpOptions: use one of them.");
    apply(*deepspeed, options);
  }
  if (!options.fsdp) options.fsdp = fsdp_options_from(environment);
  if (!options.mixed_precision) {
    const auto text = environment("ACCELERATE_MIXED_PRECISION");
    options.mixed_precision = text ? parse_precision(*text, "ACCELERATE_MIXED_PRECISION") : Precision::no;
  }
  check_accumulation(options, environment, deepspeed.has_value());
  if (options.gradient_clipping && !(*options.gradient_clipping > 0))
    throw UsageError("gradient_clipping is " + std::to_string(*options.gradient_clipping) + ": expected a norm above 0.");
  return deepspeed ? std::make_shared<const DeepSpeedSettings>(*deepspeed) : nullptr;
}

}  // namespace accelerate::detail
