#include <accelerate/core/error.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "config/config_document.h"
#include "core/closest_name.h"
#include "sharding/deepspeed_document.h"

namespace accelerate::detail {
namespace {

using nlohmann::json;

/// What becomes of a key.
enum class KeyUse {
  /// Its value is an option here.
  read,
  /// It has keys of its own in this table.
  section,
  /// It tunes or reports, and cannot change results: any value is accepted.
  tunes,
  /// Only the values in `allowed` have the same effect here.
  limited,
  /// A section that is accepted unless it is enabled.
  disabled,
  /// There is something else to do instead, which `advice` says.
  elsewhere
};

struct DeepSpeedKey {
  std::string_view path;
  KeyUse use;
  /// JSON values, separated by |.
  std::string_view allowed = {};
  const char* advice = "";
};

using U = KeyUse;
constexpr const char* kInCode = "construct it in code and pass it to prepare";
constexpr const char* kCheckpoint = "call accelerate::checkpoint in the model";

constexpr std::array kDeepSpeedKeys = {
    DeepSpeedKey{"train_batch_size", U::read},
    DeepSpeedKey{"train_micro_batch_size_per_gpu", U::read},
    DeepSpeedKey{"gradient_accumulation_steps", U::read},
    DeepSpeedKey{"gradient_clipping", U::read},
    DeepSpeedKey{"communication_data_type", U::read},
    DeepSpeedKey{"optimizer", U::elsewhere, {}, kInCode},
    DeepSpeedKey{"scheduler", U::elsewhere, {}, kInCode},
    DeepSpeedKey{"activation_checkpointing", U::elsewhere, {}, kCheckpoint},
    DeepSpeedKey{"steps_per_print", U::tunes},
    DeepSpeedKey{"wall_clock_breakdown", U::tunes},
    DeepSpeedKey{"dump_state", U::tunes},
    DeepSpeedKey{"memory_breakdown", U::tunes},
    DeepSpeedKey{"disable_allgather", U::tunes},
    DeepSpeedKey{"zero_allow_untested_optimizer", U::tunes},
    DeepSpeedKey{"zero_force_ds_cpu_optimizer", U::tunes},
    DeepSpeedKey{"aio", U::tunes},
    DeepSpeedKey{"prescale_gradients", U::limited, "false"},
    DeepSpeedKey{"gradient_predivide_factor", U::limited, "1|1.0"},
    DeepSpeedKey{"sparse_gradients", U::limited, "false"},
    DeepSpeedKey{"dataloader_drop_last", U::limited, "false"},
    DeepSpeedKey{"data_types", U::section},
    DeepSpeedKey{"data_types.grad_accum_dtype", U::limited, "null|\"fp32\""},
    DeepSpeedKey{"amp", U::disabled},
    DeepSpeedKey{"flops_profiler", U::disabled},
    DeepSpeedKey{"comms_logger", U::disabled},
    DeepSpeedKey{"tensorboard", U::disabled},
    DeepSpeedKey{"wandb", U::disabled},
    DeepSpeedKey{"csv_monitor", U::disabled},
    DeepSpeedKey{"comet", U::disabled},
    DeepSpeedKey{"autotuning", U::disabled},
    DeepSpeedKey{"elasticity", U::disabled},
    DeepSpeedKey{"data_efficiency", U::disabled},
    DeepSpeedKey{"curriculum_learning", U::disabled},
    DeepSpeedKey{"torch_autocast", U::disabled},

    DeepSpeedKey{"bf16", U::section},
    DeepSpeedKey{"bf16.enabled", U::read},
    DeepSpeedKey{"bf16.immediate_grad_update", U::tunes},
    DeepSpeedKey{"bf16.bf16_master_weights_and_grads", U::limited, "false"},
    DeepSpeedKey{"bf16.bf16_optimizer_states", U::limited, "false"},
    DeepSpeedKey{"fp16", U::section},
    DeepSpeedKey{"fp16.enabled", U::read},
    DeepSpeedKey{"fp16.auto_cast", U::tunes},
    DeepSpeedKey{"fp16.loss_scale", U::read},
    DeepSpeedKey{"fp16.initial_scale_power", U::read},
    DeepSpeedKey{"fp16.loss_scale_window", U::read},
    DeepSpeedKey{"fp16.hysteresis", U::read},
    DeepSpeedKey{"fp16.consecutive_hysteresis", U::read},
    DeepSpeedKey{"fp16.min_loss_scale", U::read},
    DeepSpeedKey{"fp16.fp16_master_weights_and_grads", U::limited, "false"},

    DeepSpeedKey{"zero_optimization", U::section},
    DeepSpeedKey{"zero_optimization.stage", U::read},
    DeepSpeedKey{"zero_optimization.stage3_gather_16bit_weights_on_model_save", U::read},
    DeepSpeedKey{"zero_optimization.stage3_prefetch_bucket_size", U::read},
    DeepSpeedKey{"zero_optimization.mics_shard_size", U::read},
    DeepSpeedKey{"zero_optimization.mics_hierarchical_params_gather", U::tunes},
    DeepSpeedKey{"zero_optimization.contiguous_gradients", U::tunes},
    DeepSpeedKey{"zero_optimization.reduce_scatter", U::tunes},
    DeepSpeedKey{"zero_optimization.reduce_bucket_size", U::tunes},
    DeepSpeedKey{"zero_optimization.use_multi_rank_bucket_allreduce", U::tunes},
    DeepSpeedKey{"zero_optimization.allgather_partitions", U::tunes},
    DeepSpeedKey{"zero_optimization.allgather_bucket_size", U::tunes},
    DeepSpeedKey{"zero_optimization.overlap_comm", U::tunes},
    DeepSpeedKey{"zero_optimization.load_from_fp32_weights", U::tunes},
    DeepSpeedKey{"zero_optimization.elastic_checkpoint", U::tunes},
    DeepSpeedKey{"zero_optimization.sub_group_size", U::tunes},
    DeepSpeedKey{"zero_optimization.ignore_unused_parameters", U::tunes},
    DeepSpeedKey{"zero_optimization.legacy_stage1", U::tunes},
    DeepSpeedKey{"zero_optimization.round_robin_gradients", U::tunes},
    DeepSpeedKey{"zero_optimization.memory_efficient_linear", U::tunes},
    DeepSpeedKey{"zero_optimization.pipeline_loading_checkpoint", U::tunes},
    DeepSpeedKey{"zero_optimization.override_module_apply", U::tunes},
    DeepSpeedKey{"zero_optimization.log_trace_cache_warnings", U::tunes},
    DeepSpeedKey{"zero_optimization.stage3_max_live_parameters", U::tunes},
    DeepSpeedKey{"zero_optimization.stage3_max_reuse_distance", U::tunes},
    DeepSpeedKey{"zero_optimization.stage3_param_persistence_threshold", U::tunes},
    DeepSpeedKey{"zero_optimization.stage3_model_persistence_threshold", U::tunes},
    DeepSpeedKey{"zero_optimization.stage3_module_granularity_threshold", U::tunes},
    DeepSpeedKey{"zero_optimization.stage3_use_all_reduce_for_fetch_params", U::tunes},
    DeepSpeedKey{"zero_optimization.zero_hpz_partition_size", U::limited, "1"},
    DeepSpeedKey{"zero_optimization.zero_quantized_weights", U::limited, "false"},
    DeepSpeedKey{"zero_optimization.zero_quantized_nontrainable_weights", U::limited, "false"},
    DeepSpeedKey{"zero_optimization.zero_quantized_gradients", U::limited, "false"},
    DeepSpeedKey{"zero_optimization.offload_optimizer", U::section},
    DeepSpeedKey{"zero_optimization.offload_optimizer.device", U::read},
    DeepSpeedKey{"zero_optimization.offload_optimizer.nvme_path", U::read},
    DeepSpeedKey{"zero_optimization.offload_optimizer.pin_memory", U::tunes},
    DeepSpeedKey{"zero_optimization.offload_optimizer.buffer_count", U::tunes},
    DeepSpeedKey{"zero_optimization.offload_optimizer.fast_init", U::tunes},
    DeepSpeedKey{"zero_optimization.offload_optimizer.pipeline", U::tunes},
    DeepSpeedKey{"zero_optimization.offload_optimizer.pipeline_read", U::tunes},
    DeepSpeedKey{"zero_optimization.offload_optimizer.pipeline_write", U::tunes},
    DeepSpeedKey{"zero_optimization.offload_optimizer.ratio", U::tunes},
    DeepSpeedKey{"zero_optimization.offload_param", U::section},
    DeepSpeedKey{"zero_optimization.offload_param.device", U::read},
    DeepSpeedKey{"zero_optimization.offload_param.nvme_path", U::read},
    DeepSpeedKey{"zero_optimization.offload_param.pin_memory", U::tunes},
    DeepSpeedKey{"zero_optimization.offload_param.buffer_count", U::tunes},
    DeepSpeedKey{"zero_optimization.offload_param.buffer_size", U::tunes},
    DeepSpeedKey{"zero_optimization.offload_param.max_in_cpu", U::tunes},
};

/// A hint at the key of the section `prefix` that `name` may be a typo of. A name of a file may be as long as the file.
std::string closest_key(const std::string& prefix, const std::string& name) {
  constexpr size_t kLongestKey = 80;
  std::vector<std::string> known;
  for (const auto& key : kDeepSpeedKeys) {
    const std::string_view rest = key.path.starts_with(prefix) ? key.path.substr(prefix.size()) : std::string_view();
    if (!rest.empty() && rest.find('.') == std::string_view::npos) known.emplace_back(rest);
  }
  return name.size() <= kLongestKey ? closest_hint(name, known, prefix) : "";
}

[[noreturn]] void refuse_unknown(const std::string& prefix, const std::string& name) {
  throw ConfigError("DeepSpeed's " + shown(prefix + name) + " is not supported by C++ programs" + closest_key(prefix, name) +
                    ". Remove it from the DeepSpeed configuration.");
}

void check_limited(const DeepSpeedKey& key, const json& value) {
  const std::string text = value.dump();
  for (std::string_view rest = key.allowed; !rest.empty();) {
    const size_t end = std::min(rest.find('|'), rest.size());
    if (text == rest.substr(0, end)) return;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  std::string expected(key.allowed.substr(0, key.allowed.find('|')));
  throw ConfigError("DeepSpeed's " + std::string(key.path) + " is " + shown(text) +
                    ", which is not supported by C++ programs: expected " + expected + ". Remove the key.");
}

void check_disabled(const DeepSpeedKey& key, const json& value) {
  if (!value.is_object() || value.value("enabled", json(false)) == false) return;
  throw ConfigError("DeepSpeed's " + std::string(key.path) + ".enabled is " + shown(value["enabled"].dump()) +
                    ": C++ programs do not support " + std::string(key.path) + ". Remove it from the DeepSpeed configuration.");
}

void check_section(const json& section, const std::string& prefix);

void check_key(const DeepSpeedKey& key, const json& value) {
  const std::string path(key.path);
  if (value.is_null()) return;
  if (key.use == U::section && !value.is_object())
    throw ConfigError("DeepSpeed's " + path + " is " + shown(value.dump()) + ": expected a section, in {}.");
  if (key.use == U::section) check_section(value, path + ".");
  if (key.use == U::limited) check_limited(key, value);
  if (key.use == U::disabled) check_disabled(key, value);
  if (key.use == U::elsewhere)
    throw ConfigError("DeepSpeed's " + path + " is not supported by C++ programs: " + key.advice +
                      ", and remove it from the DeepSpeed configuration.");
}

void check_section(const json& section, const std::string& prefix) {
  for (const auto& [name, value] : section.items()) {
    const std::string path = prefix + name;
    const auto* key =
        std::find_if(kDeepSpeedKeys.begin(), kDeepSpeedKeys.end(), [&](const auto& row) { return row.path == path; });
    if (key == kDeepSpeedKeys.end()) refuse_unknown(prefix, name);
    check_key(*key, value);
  }
}

}  // namespace

void check_deepspeed_keys(const json& document) { check_section(document, ""); }

}  // namespace accelerate::detail
