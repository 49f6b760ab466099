#include "sharding/fsdp_environment.h"

#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>

#include <algorithm>
#include <array>
#include <regex>
#include <span>
#include <string>
#include <string_view>

#include "core/escaped.h"
#include "sharding/parallelism_sizes.h"
#include "sharding/variable_values.h"

namespace accelerate::detail {
namespace {

using Names = std::span<const char* const>;

constexpr std::array kStrategies = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
constexpr std::array kPrefetches = {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"};
constexpr std::array kStateDictTypes = {"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"};
constexpr std::array kWrapPolicies = {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"};

std::string in_upper_case(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

std::string one_of(Names names, size_t numbered) {
  std::string text = "one of ";
  for (const char* name : names) text += (name == names.front() ? "" : ", ") + std::string(name);
  if (numbered > 0) text += " in any case, or a number from 1 to " + std::to_string(numbered) + " in this order";
  return text;
}

bool is_digits(const std::string& text) { return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos; }

/// Which of `names` a variable has, in any case, or by its number, of which the first `numbered` have one.
size_t choice_in(const std::string& variable, const std::string& value, Names names, size_t numbered) {
  const std::string name = in_upper_case(value);
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  const auto number = is_digits(value) ? whole_number(value) : std::nullopt;
  if (number && *number >= 1 && *number <= static_cast<int64_t>(numbered)) return static_cast<size_t>(*number - 1);
  refuse_variable(variable, value, one_of(names, numbered));
}

ShardingStrategy strategy_of(const std::string& variable, const std::string& value) {
  if (in_upper_case(value) == "_HYBRID_SHARD_ZERO2") return ShardingStrategy::hybrid_shard_zero2;  // torch's own name of it
  return static_cast<ShardingStrategy>(choice_in(variable, value, kStrategies, kStrategies.size()));
}

int version_from(const Environment& environment) {
  const auto text = environment("FSDP_VERSION");
  const auto version = text ? whole_number(*text) : 1;
  if (version != 1 && version != 2) refuse_variable("FSDP_VERSION", *text, "1 or 2");
  return static_cast<int>(*version);
}

/// Version 1 knows strategies alone. The launcher sets FSDP_RESHARD_AFTER_FORWARD anyway, and Python's wizard writes the strategy
/// there, where Python does not read it.
void take_strategy_1(FsdpOptions& options, const Environment& environment, const Logger& logger) {
  options.sharding_strategy = strategy_of("FSDP_SHARDING_STRATEGY", environment("FSDP_SHARDING_STRATEGY").value_or("FULL_SHARD"));
  const auto other = environment("FSDP_RESHARD_AFTER_FORWARD");
  if (!other) return;
  const auto named = std::find(kStrategies.begin(), kStrategies.end(), in_upper_case(*other));
  if (named == kStrategies.end() || static_cast<ShardingStrategy>(named - kStrategies.begin()) == options.sharding_strategy)
    return;
  logger.warning(
      "FSDP_RESHARD_AFTER_FORWARD={} has no effect in version 1 of FSDP, where the strategy is {}. Set fsdp_sharding_strategy.",
      *other, to_string(options.sharding_strategy));
}

void take_strategy_2(FsdpOptions& options, const Environment& environment, const Logger& logger) {
  options.reshard_after_forward = flag_from(environment, "FSDP_RESHARD_AFTER_FORWARD", true);
  options.sharding_strategy = *options.reshard_after_forward ? ShardingStrategy::full_shard : ShardingStrategy::shard_grad_op;
  const auto other = environment("FSDP_SHARDING_STRATEGY");
  if (!other || in_upper_case(*other) == kStrategies[0] || *other == "1") return;  // the launcher sets its default
  logger.warning(
      "FSDP_SHARDING_STRATEGY={} has no effect in version 2 of FSDP, where the strategy is {}. Set fsdp_reshard_after_forward, "
      "and for hybrid sharding parallelism_config_dp_replicate_size.",
      escaped(*other, kLongestQuote), to_string(options.sharding_strategy));
}

void take_prefetch(FsdpOptions& options, const Environment& environment, const Logger& logger) {
  const auto text = environment("FSDP_BACKWARD_PREFETCH");
  const auto backward = text ? static_cast<BackwardPrefetch>(choice_in("FSDP_BACKWARD_PREFETCH", *text, kPrefetches, 2))
                             : options.backward_prefetch;
  if (options.version == 1) {
    options.backward_prefetch = backward;
    options.forward_prefetch = flag_from(environment, "FSDP_FORWARD_PREFETCH", options.forward_prefetch);
  } else if (text && backward != BackwardPrefetch::no_prefetch) {
    logger.warning("FSDP_BACKWARD_PREFETCH={} has no effect in version 2 of FSDP, which always prefetches.", *text);
  }
}

void take_state_dict_type(FsdpOptions& options, const Environment& environment) {
  const char* name = "FSDP_STATE_DICT_TYPE";
  const auto text = environment(name);
  if (!text) return;
  const size_t choice = choice_in(name, *text, kStateDictTypes, kStateDictTypes.size());
  if (choice == 1)
    refuse_variable(name, *text,
                    "FULL_STATE_DICT or SHARDED_STATE_DICT, whose files any number of ranks can load; local state dicts are not "
                    "supported");
  options.state_dict_type = choice == 0 ? StateDictType::full : StateDictType::sharded;
}

std::vector<std::string> layer_classes_from(const Environment& environment) {
  const char* name = "FSDP_TRANSFORMER_CLS_TO_WRAP";
  const auto text = environment(name);
  if (!text) {
    throw ConfigError(std::string("FSDP_AUTO_WRAP_POLICY=TRANSFORMER_BASED_WRAP needs ") + name +
                      " (fsdp_transformer_layer_cls_to_wrap), the classes of the layers to shard as units, separated by commas: "
                      "C++ modules have no list of their own.");
  }
  return names_listed_in(name, *text);
}

void take_wrapping(FsdpOptions& options, const Environment& environment, const Logger& logger) {
  const std::string given = environment("FSDP_AUTO_WRAP_POLICY").value_or("NO_WRAP");
  const size_t policy = choice_in("FSDP_AUTO_WRAP_POLICY", given, kWrapPolicies, 0);
  if (policy == 0) {
    options.transformer_layer_classes = layer_classes_from(environment);
  } else if (environment("FSDP_TRANSFORMER_CLS_TO_WRAP")) {
    logger.warning(
        "FSDP_TRANSFORMER_CLS_TO_WRAP has no effect with FSDP_AUTO_WRAP_POLICY={}. Set fsdp_auto_wrap_policy to "
        "TRANSFORMER_BASED_WRAP.",
        given);
  }
  if (policy != 1) return;
  const std::string text = environment("FSDP_MIN_NUM_PARAMS").value_or("0");
  const auto count = whole_number(text);
  if (!count || *count < 0) refuse_variable("FSDP_MIN_NUM_PARAMS", text, "an integer of at least 0");
  options.min_num_params = *count;
}

void take_ignored_modules(FsdpOptions& options, const Environment& environment) {
  const char* name = "FSDP_IGNORED_MODULES";
  const auto text = environment(name);
  if (!text) return;
  try {
    const std::regex checked(*text);
  } catch (const std::regex_error&) {
    refuse_variable(name, *text, "a regular expression (ECMAScript) that matches the full names of modules");
  }
  options.ignored_modules = {*text};
}

void take_loading(FsdpOptions& options, const Environment& environment, const Logger& logger) {
  const bool only_rank_0_loads = flag_from(environment, "FSDP_CPU_RAM_EFFICIENT_LOADING", false);
  if (options.version == 2) return;
  options.sync_module_states = flag_from(environment, "FSDP_SYNC_MODULE_STATES", options.sync_module_states);
  flag_from(environment, "FSDP_USE_ORIG_PARAMS", true);  // always in effect: shards keep the parameters of the module
  if (!only_rank_0_loads || options.sync_module_states) return;
  options.sync_module_states = true;
  logger.warning(
      "FSDP_SYNC_MODULE_STATES is false, but FSDP_CPU_RAM_EFFICIENT_LOADING is true, with which only rank 0 has the weights: "
      "they "
      "are broadcast.");
}

void take_checkpointing(FsdpOptions& options, const Environment& environment) {
  const char* name = "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD";
  options.activation_checkpointing = flag_from(environment, "FSDP_ACTIVATION_CHECKPOINTING", false);
  options.activation_checkpointing_offload = flag_from(environment, name, false);
  if (!options.activation_checkpointing_offload) return;
  if (!options.activation_checkpointing)
    refuse_variable(name, *environment(name), "false unless FSDP_ACTIVATION_CHECKPOINTING is true");
  if (options.version != 2) refuse_variable(name, *environment(name), "false unless FSDP_VERSION is 2");
}

void take_layout(FsdpOptions& options, const Environment& environment) {
  const auto sizes = parallelism_sizes_from(environment);
  if (!sizes || *sizes == ParallelismSizes{}) return;
  if (options.version != 2) {
    throw ConfigError("FSDP_VERSION=1: expected 2 with ACCELERATE_USE_PARALLELISM_CONFIG, as in Python. Set fsdp_version: 2.");
  }
  if (sizes->dp_shard == 1) {
    throw ConfigError(
        "PARALLELISM_CONFIG_DP_SHARD_SIZE=1: expected more than 1 with ACCELERATE_USE_FSDP, or there are no ranks to shard over. "
        "Launch without use_fsdp to train replicas.");
  }
  if (sizes->dp_replicate == 1) return;
  options.sharding_strategy =
      *options.reshard_after_forward ? ShardingStrategy::hybrid_shard : ShardingStrategy::hybrid_shard_zero2;
  options.shard_group_size = sizes->dp_shard;
}

}  // namespace

std::optional<FsdpOptions> fsdp_options_from(const Environment& environment) {
  if (!flag_from(environment, "ACCELERATE_USE_FSDP", false)) return std::nullopt;
  const Logger logger = get_logger("accelerate", {}, environment);
  FsdpOptions options;
  options.version = version_from(environment);
  if (options.version == 1) {
    take_strategy_1(options, environment, logger);
  } else {
    take_strategy_2(options, environment, logger);
  }
  options.cpu_offload = flag_from(environment, "FSDP_OFFLOAD_PARAMS", false);
  take_prefetch(options, environment, logger);
  take_state_dict_type(options, environment);
  take_wrapping(options, environment, logger);
  take_checkpointing(options, environment);
  take_ignored_modules(options, environment);
  take_loading(options, environment, logger);
  take_layout(options, environment);
  return options;
}

}  // namespace accelerate::detail
