#include <accelerate/core/error.h>

#include <fstream>

#include "conformance/golden.h"
#include "sharding/fsdp_environment.h"
#include "support/paths.h"

// tests/golden/fsdp_environment.json is ours, made by make_fsdp_environment.py beside this file; ACCELERATE_GOLDEN_DIR has no
// part in it.
namespace {

using accelerate::FsdpOptions;
using nlohmann::json;

accelerate::Environment fsdp_variables_of(const json& recipe) {
  return [recipe](const std::string& name) -> std::optional<std::string> {
    if (name == "ACCELERATE_USE_FSDP") return "true";
    if (name == "ACCELERATE_LOG_LEVEL") return "critical";
    return recipe.contains(name) ? std::optional(recipe.at(name).get<std::string>()) : std::nullopt;
  };
}

/// The options in the words of the data. Where Python has a default of its own, what no variable sets is left out.
json fsdp_in_words(const FsdpOptions& options, const json& recipe) {
  const bool first = options.version == 1;
  json words = {{"version", options.version}, {"state_dict_type", first ? "full_state_dict" : "sharded_state_dict"}};
  if (first) words["sharding_strategy"] = to_string(options.sharding_strategy);
  if (options.reshard_after_forward.value_or(false)) words["reshard_after_forward"] = true;
  if (options.state_dict_type) words["state_dict_type"] = to_string(*options.state_dict_type);
  if (!options.transformer_layer_classes.empty()) words["transformer_layer_classes"] = options.transformer_layer_classes;
  if (options.min_num_params != 0) words["min_num_params"] = options.min_num_params;
  if (!options.ignored_modules.empty()) words["ignored_modules"] = options.ignored_modules.at(0);
  const bool prefetches = first && recipe.contains("FSDP_BACKWARD_PREFETCH");
  if (prefetches && options.backward_prefetch != accelerate::BackwardPrefetch::no_prefetch)
    words["backward_prefetch"] = to_string(options.backward_prefetch);
  const auto add = [&](const char* name, bool value) {
    if (value) words[name] = true;
  };
  add("cpu_offload", options.cpu_offload);
  add("activation_checkpointing", options.activation_checkpointing);
  add("activation_checkpointing_offload", options.activation_checkpointing_offload);
  add("forward_prefetch", first && recipe.contains("FSDP_FORWARD_PREFETCH") && options.forward_prefetch);
  const bool only_here = !recipe.contains("FSDP_SYNC_MODULE_STATES") && !recipe.contains("FSDP_CPU_RAM_EFFICIENT_LOADING");
  add("sync_module_states", first && !only_here && options.sync_module_states);
  return words;
}

std::string fsdp_difference(const json& recipe) {
  const auto value = [&](const char* name) { return recipe.value(name, std::string()); };
  const std::string type = value("FSDP_STATE_DICT_TYPE");
  if (recipe.value("FSDP_VERSION", "1") != "2" && (type == "LOCAL_STATE_DICT" || type == "2"))
    return "There is no LOCAL_STATE_DICT";
  if (value("FSDP_AUTO_WRAP_POLICY") == "TRANSFORMER_BASED_WRAP" && !recipe.contains("FSDP_TRANSFORMER_CLS_TO_WRAP"))
    return "TRANSFORMER_BASED_WRAP needs the names of classes";
  const std::string loading = value("FSDP_CPU_RAM_EFFICIENT_LOADING");
  if (recipe.value("FSDP_VERSION", "1") != "2" && !recipe.contains("FSDP_SYNC_MODULE_STATES") && !loading.empty())
    return loading == "true" || loading == "1" || loading == "ON" ? "" : "Weights are broadcast unless a variable says not to";
  return "";
}

TEST(Golden, FsdpVariablesAreReadAsPythonReadsThem) {
  std::ifstream file(std::string(kProjectFolder) + "/tests/golden/fsdp_environment.json");
  const json data = json::parse(file);
  golden::Tally tally("FSDP variables");
  for (const auto& c : data.at("cases")) {
    const json& recipe = c.at("variables");
    json ours;
    std::string gave = "refused";
    try {
      ours = fsdp_in_words(*accelerate::detail::fsdp_options_from(fsdp_variables_of(recipe)), recipe);
      gave = ours.dump();
    } catch (const accelerate::ConfigError& error) {
      gave = error.what();
    }
    const bool held = ours == c.at("plugin");
    tally.judge(recipe.dump(), held, gave, held ? "" : fsdp_difference(recipe));
  }
}

}  // namespace
