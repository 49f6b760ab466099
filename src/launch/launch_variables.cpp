#include "launch/launch_variables.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <span>

#include <accelerate/core/error.h>
#include <accelerate/core/launch_environment.h>
#include "launch/launch_flags.h"

namespace accelerate {
namespace {

using Json = nlohmann::json;

/// How a value becomes text.
enum class Spelling { as_is, lower_case };

/// The value of an argument, when it has one, becomes a variable.
struct VariableRow {
  const char* argument;
  const char* variable;
  Spelling spelling = Spelling::as_is;
};

constexpr VariableRow kDynamoRows[] = {
    {"dynamo_mode", "ACCELERATE_DYNAMO_MODE"},
    {"dynamo_use_fullgraph", "ACCELERATE_DYNAMO_USE_FULLGRAPH"},
    {"dynamo_use_dynamic", "ACCELERATE_DYNAMO_USE_DYNAMIC"},
    {"dynamo_use_regional_compilation", "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"},
};

constexpr VariableRow kFsdpRows[] = {
    {"fsdp_version", "FSDP_VERSION"},
    {"fsdp_sharding_strategy", "FSDP_SHARDING_STRATEGY"},
    {"fsdp_reshard_after_forward", "FSDP_RESHARD_AFTER_FORWARD", Spelling::lower_case},
    {"fsdp_offload_params", "FSDP_OFFLOAD_PARAMS", Spelling::lower_case},
    {"fsdp_min_num_params", "FSDP_MIN_NUM_PARAMS"},
    {"fsdp_auto_wrap_policy", "FSDP_AUTO_WRAP_POLICY"},
    {"fsdp_transformer_layer_cls_to_wrap", "FSDP_TRANSFORMER_CLS_TO_WRAP"},
    {"fsdp_backward_prefetch", "FSDP_BACKWARD_PREFETCH"},
    {"fsdp_state_dict_type", "FSDP_STATE_DICT_TYPE"},
    {"fsdp_forward_prefetch", "FSDP_FORWARD_PREFETCH", Spelling::lower_case},
    {"fsdp_use_orig_params", "FSDP_USE_ORIG_PARAMS", Spelling::lower_case},
    {"fsdp_cpu_ram_efficient_loading", "FSDP_CPU_RAM_EFFICIENT_LOADING", Spelling::lower_case},
    {"fsdp_sync_module_states", "FSDP_SYNC_MODULE_STATES", Spelling::lower_case},
    {"fsdp_activation_checkpointing", "FSDP_ACTIVATION_CHECKPOINTING", Spelling::lower_case},
    {"fsdp_activation_checkpointing_offload", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", Spelling::lower_case},
    {"fsdp_ignored_modules", "FSDP_IGNORED_MODULES"},  // a key of config files alone
};

// NVMe paths are read by the plugin too, and Python's launcher forgets them.
constexpr VariableRow kDeepspeedRows[] = {
    {"deepspeed_fields", "ACCELERATE_CONFIG_DS_FIELDS", Spelling::lower_case},
    {"zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE"},
    {"gradient_accumulation_steps", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"},
    {"gradient_clipping", "ACCELERATE_GRADIENT_CLIPPING", Spelling::lower_case},
    {"offload_optimizer_device", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", Spelling::lower_case},
    {"offload_param_device", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", Spelling::lower_case},
    {"offload_optimizer_nvme_path", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH"},
    {"offload_param_nvme_path", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH"},
    {"zero3_init_flag", "ACCELERATE_DEEPSPEED_ZERO3_INIT", Spelling::lower_case},
    {"zero3_save_16bit_model", "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", Spelling::lower_case},
    {"deepspeed_config_file", "ACCELERATE_DEEPSPEED_CONFIG_FILE"},
    {"deepspeed_moe_layer_cls_names", "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"},
};

constexpr VariableRow kParallelismRows[] = {
    {"parallelism_config_dp_replicate_size", "PARALLELISM_CONFIG_DP_REPLICATE_SIZE"},
    {"parallelism_config_dp_shard_size", "PARALLELISM_CONFIG_DP_SHARD_SIZE"},
    {"parallelism_config_tp_size", "PARALLELISM_CONFIG_TP_SIZE"},
    {"parallelism_config_cp_size", "PARALLELISM_CONFIG_CP_SIZE"},
    {"parallelism_config_cp_backend", "PARALLELISM_CONFIG_CP_BACKEND"},
    {"parallelism_config_sp_size", "PARALLELISM_CONFIG_SP_SIZE"},
    {"parallelism_config_sp_backend", "PARALLELISM_CONFIG_SP_BACKEND"},
};

constexpr VariableRow kContextRows[] = {{"parallelism_config_cp_comm_strategy", "PARALLELISM_CONFIG_CP_COMM_STRATEGY"}};

constexpr VariableRow kSequenceRows[] = {
    {"parallelism_config_sp_seq_length", "PARALLELISM_CONFIG_SP_SEQ_LENGTH"},
    {"parallelism_config_sp_seq_length_is_variable", "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE"},
    {"parallelism_config_sp_attn_implementation", "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION"},
};

std::string in_lower_case(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

std::string in_capitals(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

void add_rows(Variables& variables, std::span<const VariableRow> rows, const LaunchArguments& arguments) {
  for (const VariableRow& row : rows) {
    if (!arguments.values.contains(row.argument) || arguments.values[row.argument].is_null()) continue;
    const std::string text = arguments.text(row.argument);
    variables[row.variable] = row.spelling == Spelling::lower_case ? in_lower_case(text) : text;
  }
}

// The names of these variables are those of the arguments.
void add_group(Variables& variables, FlagGroup group, const std::string& prefix, const LaunchArguments& arguments) {
  for (const LaunchFlag& flag : launch_flags()) {
    if (flag.group != group || arguments.values[flag.destination()].is_null()) continue;
    variables[prefix + in_capitals(flag.destination())] = arguments.text(flag.destination());
  }
}

int size_of(const LaunchArguments& arguments, const char* name) {
  const Json& value = arguments.values.at(name);
  if (value.is_number_integer() && value >= 1 && value <= INT_MAX) return value.get<int>();
  throw UsageError(fmt::format("{} is {}; give a whole number from 1.", name, value.dump()));
}

}  // namespace

Variables dynamo_variables(const LaunchArguments& arguments) {
  Variables variables;
  const std::string backend =
      arguments.values["dynamo_backend"].is_null() ? "no" : in_lower_case(arguments.text("dynamo_backend"));
  const auto known = find_launch_flag("dynamo_backend")->choice_list();
  if (std::find(known.begin(), known.end(), backend) == known.end()) {
    throw UsageError(
        fmt::format("dynamo_backend is '{}', which Python does not know; `accelerate launch --help` lists those it does.",
                    arguments.text("dynamo_backend")));
  }
  variables["ACCELERATE_DYNAMO_BACKEND"] = in_capitals(backend);
  add_rows(variables, kDynamoRows, arguments);
  return variables;
}

Variables fsdp_variables(const LaunchArguments& arguments) {
  Variables variables = {{"ACCELERATE_USE_FSDP", "true"}};
  add_rows(variables, kFsdpRows, arguments);
  const auto is_true = [&](const char* name) { return parse_flag(arguments.text(name), name); };
  if (is_true("fsdp_cpu_ram_efficient_loading") && !is_true("fsdp_sync_module_states")) {
    throw UsageError(
        "--fsdp_cpu_ram_efficient_loading is true and --fsdp_sync_module_states is not: only rank 0 would have the weights. "
        "Set both, or neither.");
  }
  return variables;
}

Variables megatron_variables(const LaunchArguments& arguments) {
  Variables variables = {{"ACCELERATE_USE_MEGATRON_LM", "true"}};
  add_group(variables, FlagGroup::megatron, "", arguments);
  return variables;
}

Variables deepspeed_variables(const LaunchArguments& arguments) {
  Variables variables = {{"ACCELERATE_USE_DEEPSPEED", "true"}};
  add_rows(variables, kDeepspeedRows, arguments);
  return variables;
}

Variables parallelism_variables(const LaunchArguments& arguments) {
  Variables variables = {{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"}};
  add_rows(variables, kParallelismRows, arguments);
  if (size_of(arguments, "parallelism_config_cp_size") > 1) add_rows(variables, kContextRows, arguments);
  if (size_of(arguments, "parallelism_config_sp_size") > 1) {
    add_rows(variables, kSequenceRows, arguments);
    variables.emplace("PARALLELISM_CONFIG_SP_SEQ_LENGTH", "None");  // as Python writes a length that is not known
  }
  return variables;
}

Variables fp8_variables(const LaunchArguments& arguments) {
  Variables variables;
  for (const auto& [name, value] : arguments.values.items()) {
    if (!name.starts_with("fp8_") || value.is_null()) continue;
    variables["ACCELERATE_" + in_capitals(name)] = python_str(value);
  }
  const Json& override = arguments.values["fp8_override_linear_precision"];
  if (variables.erase("ACCELERATE_FP8_OVERRIDE_LINEAR_PRECISION") != 0) {
    if (!override.is_array() || override.size() != 3) {
      throw UsageError(fmt::format("fp8_override_linear_precision is {}; three of true and false are needed.", override.dump()));
    }
    variables["ACCELERATE_FP8_OVERRIDE_FPROP"] = python_str(override[0]);
    variables["ACCELERATE_FP8_OVERRIDE_DGRAD"] = python_str(override[1]);
    variables["ACCELERATE_FP8_OVERRIDE_WGRAD"] = python_str(override[2]);
  }
  // Readers know the names of backends in capitals alone.
  if (auto backend = variables.find("ACCELERATE_FP8_BACKEND"); backend != variables.end())
    backend->second = in_capitals(backend->second);
  return variables;
}

}  // namespace accelerate
