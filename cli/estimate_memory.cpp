#include <charconv>
#include <cstdio>
#include <optional>

#include <accelerate/core/error.h>
#include <nlohmann/json.hpp>

#include "checkpoint_files/memory_estimate.h"
#include "core/escaped.h"
#include "core/hub_cache.h"
#include "described_command.h"
#include "subcommands.h"

namespace accelerate::detail::cli {
namespace {

using Json = nlohmann::ordered_json;

/// The number of ranks that was asked for, or nothing.
std::optional<int> ranks_of(const Arguments& given) {
  if (!given.shard) return std::nullopt;
  const std::string& text = *given.shard;
  int ranks = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  if (problem == std::errc() && end == text.data() + text.size() && ranks >= 1) return ranks;
  throw UsageError("--shard is '" + text + "'; give a number of ranks, at least 1.");
}

Json sharding_json(int ranks, const std::vector<ShardEstimate>& estimates) {
  Json list = Json::array();
  for (const auto& estimate : estimates) {
    list.push_back({{"strategy", estimate.strategy},
                    {"precision", estimate.precision},
                    {"weights", estimate.weights},
                    {"gradients", estimate.gradients},
                    {"optimizer", estimate.optimizer},
                    {"whole_units", estimate.units},
                    {"peak", estimate.peak},
                    {"host", estimate.host}});
  }
  return {{"ranks", ranks}, {"per_rank", list}};
}

Json estimate_json(const std::string& model, const WeightSizes& sizes, const std::vector<MemoryEstimate>& estimates) {
  Json layers = Json::array();
  for (const auto& name : sizes.largest_names) layers.push_back(valid_utf8(name));
  Json document = {
      {"model", valid_utf8(model)}, {"tensors", sizes.tensors}, {"largest_layers", layers}, {"estimates", Json::array()}};
  for (const auto& estimate : estimates) {
    document["estimates"].push_back({{"dtype", estimate.dtype},
                                     {"largest_layer", estimate.largest_layer},
                                     {"total_size", estimate.total_size},
                                     {"training", estimate.training ? Json(*estimate.training) : nullptr}});
  }
  return document;
}

int estimate(const Arguments& given, std::optional<int> ranks) {
  const std::string& model = given.operands[0];
  const WeightSizes sizes = read_weight_sizes(find_model(model));
  std::vector<MemoryEstimate> estimates;
  const std::vector<std::string> all = {"float32", "float16", "int8", "int4"};
  for (const auto& dtype : given.dtypes.empty() ? all : given.dtypes) estimates.push_back(estimate_memory(sizes, dtype));
  const auto sharded = ranks ? estimate_sharding(sizes, *ranks) : std::vector<ShardEstimate>();
  std::string text;
  if (given.json) {
    Json document = estimate_json(model, sizes, estimates);
    if (ranks) document["sharding"] = sharding_json(*ranks, sharded);
    text = document.dump(2, ' ', true);
  } else {
    text = estimates_table(escaped(model), estimates);
    if (ranks) text += "\n\n" + sharding_table(escaped(model), *ranks, sharded);
  }
  return std::printf("%s\n", text.c_str()) < 0 || std::fflush(stdout) != 0;
}

int estimate_given(const Arguments& given) {
  std::optional<int> ranks;
  try {
    ranks = ranks_of(given);
  } catch (const UsageError& error) {
    tell_problem("accelerate estimate-memory", error.what());
    return kUsageExitCode;
  }
  return estimate(given, ranks);
}

}  // namespace

int run_estimate_command(std::vector<std::string> arguments) {
  return run_described("estimate-memory", arguments, estimate_given);
}

}  // namespace accelerate::detail::cli
