#include <cstdio>

#include <nlohmann/json.hpp>

#include "checkpoint_files/memory_estimate.h"
#include "core/escaped.h"
#include "core/hub_cache.h"
#include "described_command.h"
#include "subcommands.h"

namespace accelerate::detail::cli {
namespace {

std::string estimate_json(const std::string& model, const WeightSizes& sizes, const std::vector<MemoryEstimate>& estimates) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const auto& name : sizes.largest_names) layers.push_back(valid_utf8(name));
  nlohmann::ordered_json document = {{"model", valid_utf8(model)},
                                     {"tensors", sizes.tensors},
                                     {"largest_layers", layers},
                                     {"estimates", nlohmann::ordered_json::array()}};
  for (const auto& estimate : estimates) {
    document["estimates"].push_back({{"dtype", estimate.dtype},
                                     {"largest_layer", estimate.largest_layer},
                                     {"total_size", estimate.total_size},
                                     {"training", estimate.training ? nlohmann::ordered_json(*estimate.training) : nullptr}});
  }
  return document.dump(2, ' ', true);
}

int estimate_given(const Arguments& given) {
  const std::string& model = given.operands[0];
  const WeightSizes sizes = read_weight_sizes(find_model(model));
  std::vector<MemoryEstimate> estimates;
  const std::vector<std::string> all = {"float32", "float16", "int8", "int4"};
  for (const auto& dtype : given.dtypes.empty() ? all : given.dtypes) estimates.push_back(estimate_memory(sizes, dtype));
  const std::string text = given.json ? estimate_json(model, sizes, estimates) : estimates_table(escaped(model), estimates);
  return std::printf("%s\n", text.c_str()) < 0 || std::fflush(stdout) != 0;
}

}  // namespace

int run_estimate_command(std::vector<std::string> arguments) {
  return run_described("estimate-memory", arguments, estimate_given);
}

}  // namespace accelerate::detail::cli
