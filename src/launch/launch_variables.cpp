#include "launch/launch_variables.h"

#include <fmt/format.h>

#include <climits>

#include <accelerate/core/error.h>
#include <accelerate/core/launch_environment.h>
#include "config/python_text.h"
#include "launch/launch_flags.h"

namespace accelerate::detail {
namespace {

std::string in_lower_case(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

std::string in_capitals(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

std::string variable_of(const LaunchFlag& flag, const FlagGroupInfo& group) {
  return flag.other_variable != nullptr ? flag.other_variable : group.variable_prefix + in_capitals(flag.name);
}

// Of the flags of a group that are passed on, those that have a value.
void add_group(Variables& variables, FlagGroup group, const LaunchSettings& settings) {
  const FlagGroupInfo& info = launch_flag_groups()[static_cast<size_t>(group)];
  for (const LaunchFlag& flag : launch_flags()) {
    if (flag.group != group || flag.passed == PassedAs::nothing) continue;
    const PythonValue value = value_of(settings, flag);
    if (value.is_null()) continue;
    const std::string text = python_str(value);
    variables[variable_of(flag, info)] = flag.passed == PassedAs::lower_case ? in_lower_case(text) : text;
  }
}

int size_of(const char* name, const PythonValue& value) {
  if (value.is_number_integer() && value >= 1 && value <= INT_MAX) return value.get<int>();
  throw UsageError(fmt::format("{} is {}; give an integer of at least 1.", name, value.dump()));
}

}  // namespace

Variables dynamo_variables(const LaunchSettings& settings) {
  Variables variables;
  const std::string backend = in_lower_case(settings.dynamo_backend.value_or("no"));
  if (!find_launch_flag("dynamo_backend")->has_choice(backend)) {
    throw UsageError(
        fmt::format("dynamo_backend is '{}', which is not a known backend; `accelerate launch --help-all` lists them.",
                    *settings.dynamo_backend));
  }
  variables["ACCELERATE_DYNAMO_BACKEND"] = in_capitals(backend);
  add_group(variables, FlagGroup::compiler, settings);
  return variables;
}

Variables fsdp_variables(const LaunchSettings& settings) {
  Variables variables = {{"ACCELERATE_USE_FSDP", "true"}};
  add_group(variables, FlagGroup::fsdp, settings);
  // A key of config files alone.
  if (const auto modules = settings.file_keys.find("fsdp_ignored_modules"); modules != settings.file_keys.end())
    variables["FSDP_IGNORED_MODULES"] = python_str(modules->second);
  if (parse_flag(settings.fsdp_cpu_ram_efficient_loading, "fsdp_cpu_ram_efficient_loading") &&
      !parse_flag(settings.fsdp_sync_module_states, "fsdp_sync_module_states")) {
    throw UsageError(
        "--fsdp_cpu_ram_efficient_loading is true and --fsdp_sync_module_states is not: only rank 0 would have the weights. "
        "Set both or neither.");
  }
  return variables;
}

Variables megatron_variables(const LaunchSettings& settings) {
  Variables variables = {{"ACCELERATE_USE_MEGATRON_LM", "true"}};
  add_group(variables, FlagGroup::megatron, settings);
  return variables;
}

// The plugin also reads the NVMe paths, which Python's launcher does not pass.
Variables deepspeed_variables(const LaunchSettings& settings) {
  Variables variables = {{"ACCELERATE_USE_DEEPSPEED", "true"},
                         {"ACCELERATE_CONFIG_DS_FIELDS", in_lower_case(settings.deepspeed_fields)}};
  add_group(variables, FlagGroup::deepspeed, settings);
  return variables;
}

Variables parallelism_variables(const LaunchSettings& settings) {
  Variables variables = {{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"}};
  add_group(variables, FlagGroup::parallelism, settings);
  if (size_of("parallelism_config_cp_size", settings.parallelism_config_cp_size) == 1) {
    variables.erase("PARALLELISM_CONFIG_CP_COMM_STRATEGY");
  }
  if (size_of("parallelism_config_sp_size", settings.parallelism_config_sp_size) > 1) {
    variables.emplace("PARALLELISM_CONFIG_SP_SEQ_LENGTH", "None");  // as Python writes a length that is not known
    return variables;
  }
  for (const char* name : {"SEQ_LENGTH", "SEQ_LENGTH_IS_VARIABLE", "ATTN_IMPLEMENTATION"}) {
    variables.erase(fmt::format("PARALLELISM_CONFIG_SP_{}", name));
  }
  return variables;
}

Variables fp8_variables(const LaunchSettings& settings) {
  Variables variables;
  add_group(variables, FlagGroup::fp8, settings);
  for (const auto& [key, value] : settings.file_keys) {
    if (key.starts_with("fp8_")) variables["ACCELERATE_" + in_capitals(key)] = python_str(value);
  }
  const PythonValue& override = settings.fp8_override_linear_precision;
  if (!override.is_array() || override.size() != 3) {
    throw UsageError(fmt::format("fp8_override_linear_precision is {}; expected three booleans.", override.dump()));
  }
  variables["ACCELERATE_FP8_OVERRIDE_FPROP"] = python_str(override[0]);
  variables["ACCELERATE_FP8_OVERRIDE_DGRAD"] = python_str(override[1]);
  variables["ACCELERATE_FP8_OVERRIDE_WGRAD"] = python_str(override[2]);
  // Readers know the names of backends in capitals alone.
  if (auto backend = variables.find("ACCELERATE_FP8_BACKEND"); backend != variables.end())
    backend->second = in_capitals(backend->second);
  return variables;
}

}  // namespace accelerate::detail
