#include "sharding/deepspeed_config.h"

#include <accelerate/core/error.h>

#include <fstream>

#include "conformance/golden.h"
#include "support/paths.h"

// tests/golden/deepspeed_config.json is ours, made by make_deepspeed_config.py beside this file; ACCELERATE_GOLDEN_DIR has no
// part in it.
namespace {

using nlohmann::json;

accelerate::Environment deepspeed_variables_of(const json& recipe) {
  return [recipe](const std::string& name) -> std::optional<std::string> {
    if (name == "ACCELERATE_USE_DEEPSPEED") return "true";
    if (name == "ACCELERATE_LOG_LEVEL") return "critical";
    return recipe.contains(name) ? std::optional(recipe.at(name).get<std::string>()) : std::nullopt;
  };
}

json deepspeed_in_words(const accelerate::detail::DeepSpeedSettings& settings) {
  const auto number = [](const auto& value) { return value ? json(*value) : json(); };
  return {{"zero_stage", settings.zero_stage},
          {"gradient_accumulation_steps", number(settings.gradient_accumulation_steps)},
          {"gradient_clipping", number(settings.gradient_clipping)},
          {"mixed_precision", to_string(settings.mixed_precision)},
          {"offload", settings.fsdp.cpu_offload},
          {"zero3_init_flag", settings.zero3_init_flag},
          {"save_16bit_model", settings.save_16bit_model}};
}

/// What Python ends with, in our words: "auto" is filled when a model is prepared, and a norm of 0 clips nothing.
json plugin_in_words(json plugin) {
  if (plugin.is_null()) return plugin;
  if (plugin["gradient_accumulation_steps"] == "auto") plugin["gradient_accumulation_steps"] = nullptr;
  if (plugin["gradient_clipping"] == "auto") plugin["gradient_clipping"] = 1.0;
  if (plugin["gradient_clipping"] == 0) plugin["gradient_clipping"] = nullptr;
  plugin["offload"] = plugin["offload"] != json({"none", "none"});
  plugin.erase("both");
  return plugin;
}

std::string deepspeed_difference(const json& recipe, const json& plugin) {
  if (plugin.is_null()) return "";
  if (plugin.at("both")) return "fp16 and bf16 at once are refused";
  const std::string asked = recipe.value("ACCELERATE_MIXED_PRECISION", "no");
  if (asked != "no" && plugin.at("mixed_precision") != json(asked)) return "A precision that the file disables is refused";
  if (plugin.at("zero_stage") == 0 && plugin.at("offload") != json({"none", "none"}))
    return "Offloading without sharding is refused";
  return "";
}

TEST(Golden, DeepSpeedConfigurationsAreReadAsPythonReadsThem) {
  std::ifstream file(std::string(kProjectFolder) + "/tests/golden/deepspeed_config.json");
  const json data = json::parse(file);
  golden::Tally tally("DeepSpeed configurations");
  for (const auto& c : data.at("cases")) {
    const json& recipe = c.at("variables");
    json ours;
    std::string gave = "refused";
    try {
      ours = deepspeed_in_words(*accelerate::detail::deepspeed_settings_from(deepspeed_variables_of(recipe)));
      gave = ours.dump();
    } catch (const accelerate::ConfigError& error) {
      gave = error.what();
    }
    const bool held = ours == plugin_in_words(c.at("plugin"));
    tally.judge(recipe.dump(), held, gave, held ? "" : deepspeed_difference(recipe, c.at("plugin")));
  }
}

}  // namespace
