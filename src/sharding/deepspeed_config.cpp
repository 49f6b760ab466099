#include "sharding/deepspeed_config.h"

#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "config/config_document.h"
#include "sharding/deepspeed_document.h"
#include "sharding/variable_values.h"

namespace accelerate::detail {
namespace {

using nlohmann::json;

/// How many parameters a unit has at least: what DeepSpeed prefetches by default.
constexpr int64_t kPrefetchBucket = 50'000'000;

[[noreturn]] void refuse_value(const std::string& path, const json& value, const std::string& expected) {
  throw ConfigError("DeepSpeed's " + path + " is " + shown(value.dump()) + ": expected " + expected + ".");
}

/// A value of the configuration, checked.
int64_t integer_at(const json& document, const std::string& path, int64_t least, int64_t most, int64_t fallback) {
  const json value = deepspeed_value(document, path);
  if (value.is_null()) return fallback;
  // DeepSpeed's files have 5e8 where integers are meant.
  const bool whole = value.is_number_float() && std::abs(value.get<double>()) < 1e15 && std::floor(value.get<double>()) == value;
  const json number = whole ? json(static_cast<int64_t>(value.get<double>())) : value;
  if (!number.is_number_integer() || number < least || number > most)
    refuse_value(path, value, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
  return number.get<int64_t>();
}

bool flag_at(const json& document, const std::string& path, bool fallback) {
  const json value = deepspeed_value(document, path);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) refuse_value(path, value, "true or false");
  return value.get<bool>();
}

/// What the variables say: the configuration itself without a file, and what "auto" in one is filled with.
json variables_document(const Environment& environment) {
  json clipping = "auto", steps = "auto";
  const auto steps_text = environment("ACCELERATE_GRADIENT_ACCUMULATION_STEPS");
  if (steps_text && *steps_text != "auto") {
    steps = whole_number(*steps_text).value_or(0);
    if (steps < 1 || steps > INT32_MAX)
      refuse_variable("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", *steps_text, "an integer of at least 1, or auto");
  }
  const auto clipping_text = environment("ACCELERATE_GRADIENT_CLIPPING");
  if (clipping_text && *clipping_text != "auto") {
    const std::string text = without_blanks(*clipping_text);
    double number = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || !(number >= 0) || std::isinf(number))
      refuse_variable("ACCELERATE_GRADIENT_CLIPPING", *clipping_text, "a number of at least 0, or auto");
    clipping = number;
  }
  const auto stage_text = environment("ACCELERATE_DEEPSPEED_ZERO_STAGE");
  const auto stage = stage_text ? whole_number(*stage_text) : 2;
  if (!stage || *stage < 0 || *stage > 3) refuse_variable("ACCELERATE_DEEPSPEED_ZERO_STAGE", *stage_text, "0, 1, 2 or 3");
  const auto offload = [&](const std::string& kind) {
    const std::string prefix = "ACCELERATE_DEEPSPEED_OFFLOAD_" + kind;
    return json{{"device", environment(prefix + "_DEVICE").value_or("none")},
                {"nvme_path", environment(prefix + "_NVME_PATH").value_or("none")}};
  };
  const std::string saves = environment("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL").value_or("false");
  return {{"gradient_accumulation_steps", steps},
          {"gradient_clipping", clipping},
          {"zero_optimization",
           {{"stage", *stage},
            {"offload_optimizer", offload("OPTIMIZER")},
            {"offload_param", offload("PARAM")},
            {"stage3_gather_16bit_weights_on_model_save", parse_flag(saves, "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL")}}}};
}

/// Python refuses settings of the config file that a DeepSpeed file makes void.
void check_fields(const Environment& environment) {
  constexpr std::array kVoid = {"gradient_accumulation_steps", "gradient_clipping",      "zero_stage",
                                "offload_optimizer_device",    "offload_param_device",   "offload_param_nvme_path",
                                "offload_optimizer_nvme_path", "zero3_save_16bit_model", "mixed_precision"};
  const std::string fields = "," + environment("ACCELERATE_CONFIG_DS_FIELDS").value_or("") + ",";
  for (const char* name : kVoid) {
    if (fields.find("," + std::string(name) + ",") == std::string::npos) continue;
    throw ConfigError(
        std::string(name) +
        " is in the config file beside a deepspeed_config_file, which decides it: remove it from the config file, and "
        "set it in the DeepSpeed configuration.");
  }
}

json document_from(const Environment& environment) {
  json variables = variables_document(environment);
  const std::string given = environment("ACCELERATE_DEEPSPEED_CONFIG_FILE").value_or("none");
  if (given == "none") return variables;
  json document = read_deepspeed_document(given);
  check_deepspeed_keys(document);
  check_fields(environment);
  if (deepspeed_value(document, "zero_optimization").is_null())
    throw ConfigError("The DeepSpeed configuration has no zero_optimization: add the section, with a stage from 0 to 3.");
  if (deepspeed_value(document, "gradient_accumulation_steps").is_null()) document["gradient_accumulation_steps"] = 1;
  for (const char* path : {"gradient_accumulation_steps", "gradient_clipping", "zero_optimization.stage",
                           "zero_optimization.offload_optimizer.device", "zero_optimization.offload_optimizer.nvme_path",
                           "zero_optimization.offload_param.device", "zero_optimization.offload_param.nvme_path",
                           "zero_optimization.stage3_gather_16bit_weights_on_model_save"}) {
    fill_auto(document, path, deepspeed_value(variables, path));
  }
  return document;
}

/// Whether a kind of state is offloaded, to host memory or to a folder. Shards and optimizer state are in one place: of two
/// folders the first one counts.
void take_offload(FsdpOptions& options, const json& document, const std::string& section, int stage, int least_stage) {
  const std::string path = section + ".device";
  const json device = deepspeed_value(document, path);
  if (device.is_null() || device == "none") return;
  if (device != "cpu" && device != "nvme") refuse_value(path, device, "none, cpu or nvme");
  if (stage < least_stage) refuse_value(path, device, "none below ZeRO stage " + std::to_string(least_stage));
  options.cpu_offload = true;
  if (device != "nvme") return;
  const json folder = deepspeed_value(document, section + ".nvme_path");
  if (!folder.is_string() || folder == "" || folder == "none")
    refuse_value(section + ".nvme_path", folder, "a folder on a disk of the host, for device nvme");
  if (options.offload_folder.empty()) options.offload_folder = folder.get<std::string>();
}

FsdpOptions sharding_of(const json& document, int stage, const Environment& environment) {
  constexpr std::array kStages = {ShardingStrategy::no_shard, ShardingStrategy::shard_grad_op, ShardingStrategy::shard_grad_op,
                                  ShardingStrategy::full_shard};
  FsdpOptions options{.sharding_strategy = kStages[static_cast<size_t>(stage)], .state_dict_type = StateDictType::sharded};
  take_offload(options, document, "zero_optimization.offload_optimizer", stage, 1);
  take_offload(options, document, "zero_optimization.offload_param", stage, 3);
  const char* bucket = "zero_optimization.stage3_prefetch_bucket_size";
  if (stage > 0) {
    const bool automatic = deepspeed_value(document, bucket) == "auto";
    options.min_num_params = automatic ? kPrefetchBucket : integer_at(document, bucket, 0, INT64_MAX, kPrefetchBucket);
  }
  const int64_t group = integer_at(document, "zero_optimization.mics_shard_size", -1, INT32_MAX, -1);
  if (group > 0 && stage != 3) refuse_value("zero_optimization.mics_shard_size", group, "-1 below ZeRO stage 3");
  if (group > 0) {
    options.sharding_strategy = ShardingStrategy::hybrid_shard;
    options.shard_group_size = static_cast<int>(group);
  }
  const char* classes = "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES";
  if (const auto names = environment(classes)) options.transformer_layer_classes = names_listed_in(classes, *names);
  return options;
}

/// `enabled` of a section of a 16-bit dtype, with "auto" filled by `asked`, as is a section that is not there.
bool is_enabled(json& document, const std::string& section, bool asked) {
  fill_auto(document, section + ".enabled", asked);
  return flag_at(document, section + ".enabled", deepspeed_value(document, section).is_null() && asked);
}

Precision precision_of(json& document, Precision asked) {
  if (asked == Precision::fp8) return asked;
  const bool fp16 = is_enabled(document, "fp16", asked == Precision::fp16);
  const bool bf16 = is_enabled(document, "bf16", asked == Precision::bf16);
  if (fp16 && bf16) {
    throw ConfigError(std::string("mixed_precision is ") + to_string(asked) +
                      ", and DeepSpeed's fp16.enabled and bf16.enabled ask for both dtypes: expected one of them.");
  }
  const Precision found = fp16 ? Precision::fp16 : bf16 ? Precision::bf16 : Precision::no;
  if (asked == Precision::no || asked == found) return found;
  throw ConfigError(std::string("mixed_precision is ") + to_string(asked) + ", but DeepSpeed's " + to_string(asked) +
                    ".enabled is false: expected the same in both. \"auto\" there takes over mixed_precision.");
}

GradScalerOptions scaler_of(const json& document, const Logger& logger) {
  const json loss_scale = deepspeed_value(document, "fp16.loss_scale");
  if (!loss_scale.is_null() && loss_scale != 0)
    refuse_value("fp16.loss_scale", loss_scale, "0: only dynamic loss scaling is supported");
  if (integer_at(document, "fp16.hysteresis", 1, INT32_MAX, 2) != 1) {
    logger.warning(
        "DeepSpeed's fp16.hysteresis has no effect in C++ programs: the loss scale is halved by each overflow. Set it to 1 to "
        "say "
        "so.");
  }
  return {.init_scale = std::ldexp(1.0, static_cast<int>(integer_at(document, "fp16.initial_scale_power", 0, 100, 16))),
          .growth_interval = integer_at(document, "fp16.loss_scale_window", 1, INT32_MAX, 1000)};
}

c10::ScalarType dtype_in_words(const std::string& path, const json& value) {
  if (value == "fp32") return c10::ScalarType::Float;
  if (value == "fp16") return c10::ScalarType::Half;
  if (value == "bf16" || value == "bfp16") return c10::ScalarType::BFloat16;
  refuse_value(path, value, "fp32, fp16 or bf16");
}

void take_precision(DeepSpeedSettings& settings, json& document, Precision asked, const Logger& logger) {
  settings.mixed_precision = precision_of(document, asked);
  if (settings.mixed_precision == Precision::fp16) settings.grad_scaler = scaler_of(document, logger);
  const json reduced = deepspeed_value(document, "communication_data_type");
  if (reduced.is_null()) return;
  settings.fsdp.mixed_precision = FsdpMixedPrecision{.reduce_dtype = dtype_in_words("communication_data_type", reduced)};
  if (settings.mixed_precision == Precision::fp16) settings.fsdp.mixed_precision->param_dtype = c10::ScalarType::Half;
  if (settings.mixed_precision == Precision::bf16) settings.fsdp.mixed_precision->param_dtype = c10::ScalarType::BFloat16;
}

void take_steps(DeepSpeedSettings& settings, const json& document) {
  const auto number = [&](const char* path) -> std::optional<int64_t> {
    const json value = deepspeed_value(document, path);
    if (value.is_null() || value == "auto") return std::nullopt;
    return integer_at(document, path, 1, INT32_MAX, 1);
  };
  if (const auto steps = number("gradient_accumulation_steps")) settings.gradient_accumulation_steps = static_cast<int>(*steps);
  settings.train_batch_size = number("train_batch_size");
  settings.train_micro_batch_size_per_gpu = number("train_micro_batch_size_per_gpu");
  const json clipping = deepspeed_value(document, "gradient_clipping");
  if (clipping == "auto") {
    settings.gradient_clipping = 1.0;  // what Python fills in
  } else if (!clipping.is_null()) {
    if (!clipping.is_number() || !(clipping.get<double>() >= 0))
      refuse_value("gradient_clipping", clipping, "a number of at least 0");
    if (clipping.get<double>() > 0) settings.gradient_clipping = clipping.get<double>();
  }
}

}  // namespace

std::optional<DeepSpeedSettings> deepspeed_settings_from(const Environment& environment,
                                                         std::optional<Precision> mixed_precision) {
  if (!flag_from(environment, "ACCELERATE_USE_DEEPSPEED", false)) return std::nullopt;
  const Logger logger = get_logger("accelerate", {}, environment);
  json document = document_from(environment);
  const Precision asked = mixed_precision.value_or(
      parse_precision(environment("ACCELERATE_MIXED_PRECISION").value_or("no"), "ACCELERATE_MIXED_PRECISION"));
  DeepSpeedSettings settings;
  settings.zero_stage = static_cast<int>(integer_at(document, "zero_optimization.stage", 0, 3, 0));
  settings.fsdp = sharding_of(document, settings.zero_stage, environment);
  settings.save_16bit_model = flag_at(document, "zero_optimization.stage3_gather_16bit_weights_on_model_save", false);
  take_precision(settings, document, asked, logger);
  take_steps(settings, document);
  const bool is_stage_3 = settings.zero_stage == 3;
  settings.zero3_init_flag = flag_from(environment, "ACCELERATE_DEEPSPEED_ZERO3_INIT", is_stage_3);
  if (settings.zero3_init_flag && !is_stage_3) {
    logger.warning("zero3_init_flag has no effect in ZeRO stage {}: it is for stage 3.", settings.zero_stage);
    settings.zero3_init_flag = false;
  }
  const LaunchEnvironment launch = read_launch_environment(environment);
  if (launch.launched && settings.gradient_accumulation_steps)
    check_train_batch_size(settings, std::nullopt, *settings.gradient_accumulation_steps, launch.num_processes);
  return settings;
}

void check_train_batch_size(const DeepSpeedSettings& settings, std::optional<int64_t> micro_batch,
                            int gradient_accumulation_steps, int num_processes) {
  const auto micro = micro_batch ? micro_batch : settings.train_micro_batch_size_per_gpu;
  if (!settings.train_batch_size || !micro) return;
  const int64_t taken = *micro * gradient_accumulation_steps * num_processes;
  if (*settings.train_batch_size == taken) return;
  throw ConfigError("DeepSpeed's train_batch_size is " + std::to_string(*settings.train_batch_size) + ", but a step takes " +
                    std::to_string(taken) + " samples: " + std::to_string(*micro) + " in a batch, " +
                    std::to_string(gradient_accumulation_steps) + " gradient_accumulation_steps, " +
                    std::to_string(num_processes) + " processes. Change one of them, or set train_batch_size to \"auto\".");
}

}  // namespace accelerate::detail
