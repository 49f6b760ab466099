#include "config/fsdp2_conversion.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include <accelerate/core/error.h>

namespace accelerate::detail {
namespace {

using nlohmann::json;

constexpr std::string_view kStrategyKey = "fsdp_sharding_strategy";
constexpr std::string_view kReshardKey = "fsdp_reshard_after_forward";

/// A key that version 2 does not have.
struct LeftOutKey {
  std::string_view name;
  const char* why;
};
constexpr std::array kLeftOutKeys = {LeftOutKey{"fsdp_backward_prefetch", "version 2 of FSDP always prefetches"},
                                     LeftOutKey{"fsdp_forward_prefetch", "version 2 of FSDP does not have it yet"},
                                     LeftOutKey{"fsdp_sync_module_states", "version 2 of FSDP does not need it"},
                                     LeftOutKey{"fsdp_use_orig_params", "version 2 of FSDP always does"}};

/// Whether weights are resharded after a forward pass; nothing when `value` is no strategy of version 1.
json resharding_of(const json& value) {
  constexpr std::array<std::string_view, 2> kResharded = {"FULL_SHARD", "HYBRID_SHARD"};
  constexpr std::array<std::string_view, 3> kKept = {"SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2", "NO_SHARD"};
  if (!value.is_string()) return value;
  const auto is_value = [&](std::string_view name) { return value.get_ref<const std::string&>() == name; };
  if (std::any_of(kResharded.begin(), kResharded.end(), is_value)) return true;
  if (std::any_of(kKept.begin(), kKept.end(), is_value)) return false;
  return value;
}

}  // namespace

Fsdp2Conversion to_fsdp2(json config, const std::string& path) {
  Fsdp2Conversion result{std::move(config)};
  const json section = result.config.value("fsdp_config", json());
  const bool nothing =
      section.is_null() || section == false || section == 0 || section == "" || (section.is_structured() && section.empty());
  if (nothing) {
    result.notes.emplace_back("the file has no fsdp_config, and is left as it is.");
    return result;
  }
  if (!section.is_object()) throw ConfigError(fmt::format("{}: fsdp_config must be a mapping of keys to values.", path));
  if (section.value("fsdp_version", json(1)) == 2) {
    result.notes.emplace_back(
        "fsdp_version is 2 already, and the file is left as it is. If its keys are those of version 1, set fsdp_version to 1 "
        "and run the command again.");
    return result;
  }
  json converted = json::object();
  // In order of their names: where both keys are given, the strategy decides, which is the one that version 1 reads.
  for (const auto& [key, value] : section.items()) {
    const auto* left_out =
        std::find_if(kLeftOutKeys.begin(), kLeftOutKeys.end(), [&name = key](const auto& row) { return row.name == name; });
    if (left_out != kLeftOutKeys.end()) {
      result.notes.push_back(fmt::format("{} is left out: {}.", key, left_out->why));
    } else if (key == kStrategyKey || key == kReshardKey) {
      converted[kReshardKey] = resharding_of(value);
    } else {
      converted[key] = value;
    }
  }
  converted["fsdp_version"] = 2;
  result.config["fsdp_config"] = std::move(converted);
  return result;
}

}  // namespace accelerate::detail
