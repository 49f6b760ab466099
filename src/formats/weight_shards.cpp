#include "formats/weight_shards.h"

#include <accelerate/core/error.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "core/size_text.h"

namespace accelerate::detail {
namespace {

constexpr std::array<SizeUnit, 4> kShardUnits = {{{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}}};

struct WeightNames {
  std::string_view stem, extension;
};
constexpr WeightNames names_of(WeightFormat format) {
  return format == WeightFormat::kSafetensors ? WeightNames{"model", ".safetensors"} : WeightNames{"pytorch_model", ".bin"};
}

std::string five_digits(size_t number) {
  const std::string digits = std::to_string(number);
  return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
}

/// At least five digits.
bool is_shard_number(std::string_view text) {
  return text.size() >= 5 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Puts every tensor that shares a storage beside the first that does.
void join_groups(ShardPlan& plan, const std::vector<std::vector<std::string>>& groups) {
  for (const auto& group : groups) {
    if (group.size() < 2) continue;
    const auto shard = std::find_if(plan.shards.begin(), plan.shards.end(), [&](const auto& names) {
      return std::find(names.begin(), names.end(), group.front()) != names.end();
    });
    shard->insert(shard->end(), group.begin() + 1, group.end());
  }
}

}  // namespace

uint64_t parse_shard_size(std::string_view text) {
  if (const auto bytes = parse_size(text, kShardUnits)) return static_cast<uint64_t>(*bytes);
  throw UsageError("'" + std::string(text) + "' is not a size. Give a number and a unit (KB, MB, GB or TB), such as 5GB.");
}

std::string weight_file_name(WeightFormat format, size_t shard, size_t shards) {
  const auto [stem, extension] = names_of(format);
  const std::string number = shards > 1 ? "-" + five_digits(shard) + "-of-" + five_digits(shards) : "";
  return std::string(stem) + number + std::string(extension);
}

std::string weight_index_name(WeightFormat format) { return weight_file_name(format) + ".index.json"; }

bool is_weight_file_name(WeightFormat format, std::string_view name) {
  const auto [stem, extension] = names_of(format);
  if (name.size() < stem.size() + extension.size() || !name.starts_with(stem) || !name.ends_with(extension)) return false;
  const auto middle = name.substr(stem.size(), name.size() - stem.size() - extension.size());
  const auto of = middle.find("-of-");
  return middle.empty() || (of != std::string_view::npos && middle.starts_with('-') &&
                            is_shard_number(middle.substr(1, of - 1)) && is_shard_number(middle.substr(of + 4)));
}

ShardPlan plan_shards(const std::vector<WeightToPlace>& weights, uint64_t most_bytes) {
  ShardPlan plan;
  std::vector<std::string> current;
  uint64_t current_bytes = 0;
  // Those that share follow at the end, in the order of their storages, as huggingface_hub has it.
  std::vector<std::vector<std::string>> groups;
  std::unordered_map<uint64_t, size_t> group_of;
  for (const auto& weight : weights) {
    if (weight.storage) {
      const auto [group, is_new] = group_of.try_emplace(*weight.storage, groups.size());
      if (is_new) groups.emplace_back();
      groups[group->second].push_back(weight.name);
      if (!is_new) continue;
    }
    plan.total_size += weight.bytes;
    if (weight.bytes > most_bytes) {
      plan.shards.push_back({weight.name});
      continue;
    }
    if (weight.bytes > most_bytes - current_bytes) {
      plan.shards.push_back(std::move(current));
      current = {};
      current_bytes = 0;
    }
    current.push_back(weight.name);
    current_bytes += weight.bytes;
  }
  if (!current.empty() || plan.shards.empty()) plan.shards.push_back(std::move(current));
  join_groups(plan, groups);
  return plan;
}

}  // namespace accelerate::detail
