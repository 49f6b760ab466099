#include "checkpoint_files/memory_estimate.h"

#include <accelerate/core/error.h>
#include <accelerate/core/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "checkpoint_files/weight_sources.h"
#include "console/box_table.h"

namespace accelerate::detail {
namespace {

namespace fs = std::filesystem;

struct EstimatedDtype {
  std::string_view name;
  /// How many of its elements have room in a float32.
  double smaller;
  /// What training takes, in sizes of the model in float32; 0: it cannot be trained.
  double training;
};
constexpr std::array<EstimatedDtype, 5> kEstimatedDtypes = {
    {{"float32", 1, 4}, {"float16", 2, 2}, {"bfloat16", 2, 2}, {"int8", 4, 0}, {"int4", 8, 0}}};

/// Integers are never converted; everything else is trained as float32.
double bytes_as_trained(const WeightSource& tensor) {
  double elements = 1;
  for (const int64_t length : tensor.shape) elements *= static_cast<double>(length);
  const std::string_view dtype = tensor.dtype == nullptr ? "" : tensor.dtype->name;
  if (dtype == "bool") return elements / 8;
  return dtype.starts_with("int") || dtype.starts_with("uint") ? static_cast<double>(tensor.bytes) : elements * 4;
}

bool is_number(std::string_view text) { return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos; }

std::string_view module_of(std::string_view tensor) {
  const size_t dot = tensor.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : tensor.substr(0, dot);
}

/// The outermost numbered module that a tensor is in, or "".
std::string block_of(const std::string& tensor) {
  const std::string_view module = module_of(tensor);
  for (size_t begin = 0; begin < module.size();) {
    const size_t dot = std::min(module.find('.', begin), module.size());
    if (is_number(module.substr(begin, dot - begin))) return std::string(module.substr(0, dot));
    begin = dot + 1;
  }
  return "";
}

/// All modules that have modules in them.
std::set<std::string, std::less<>> parents_of(const std::vector<WeightSource>& tensors) {
  std::set<std::string, std::less<>> parents;
  for (const auto& tensor : tensors) {
    for (auto module = module_of(module_of(tensor.name)); !module.empty(); module = module_of(module)) parents.emplace(module);
  }
  return parents;
}

/// Bytes of each layer. Tensors that a module has beside other modules are in none, but for those of the model itself.
std::map<std::string, double> layers_of(const std::vector<WeightSource>& tensors) {
  const auto parents = parents_of(tensors);
  std::map<std::string, double> layers;
  for (const auto& tensor : tensors) {
    if (tensor.same_as) continue;
    const std::string block = block_of(tensor.name), module(module_of(tensor.name));
    if (!block.empty()) {
      layers[block] += bytes_as_trained(tensor);
    } else if (module.empty()) {
      layers[tensor.name] += bytes_as_trained(tensor);
    } else if (!parents.contains(module)) {
      layers[module] += bytes_as_trained(tensor);
    }
  }
  return layers;
}

WeightSources weights_beside(const fs::path& config) {
  try {
    return find_weight_sources(config.parent_path().empty() ? fs::path(".") : config.parent_path());
  } catch (const CheckpointError& error) {
    throw CheckpointError(config.string() +
                          " does not contain the sizes of the weights; the headers of the weights files are needed. " +
                          error.what());
  }
}

WeightSources weights_at(const fs::path& path) {
  if (fs::is_directory(path)) return find_weight_sources(path);
  return path.filename() == "config.json" ? weights_beside(path) : open_weight_file(path);
}

/// "1.5 GB" in steps of 1024, rounded to two decimals, as Python writes it. It has no decimals for bytes that were never divided.
std::string memory_text(double bytes, bool divided) {
  constexpr std::array<std::string_view, 6> kUnits = {"bytes", "KB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  std::string number = accelerate::format("{:.2f}", bytes);
  // Python's shortest text of what was rounded: at least one decimal, and none of a count.
  if (number.ends_with('0')) number.pop_back();
  if (unit == 0 && !divided && number.ends_with(".0")) number.resize(number.size() - 2);
  return number + " " + std::string(kUnits[unit]);
}

constexpr std::string_view kOffloaded = "full_shard + CPU offload";

/// What is whole beside the shards. `compute` is the size of a number of the forward pass, in float32s.
double whole_units(std::string_view strategy, const WeightSizes& sizes, double compute) {
  // One unit is in use and one is prefetched; gradients of one are computed while those of another are reduced.
  const double two_units = compute * std::min(2 * sizes.largest_layer, sizes.total);
  if (strategy == "no_shard") return compute < 1 ? compute * sizes.total : 0;  // autocast's copies
  if (strategy == "shard_grad_op") return compute * sizes.total + two_units;
  return two_units + two_units;
}

ShardEstimate estimate_strategy(const WeightSizes& sizes, int ranks, std::string_view strategy, bool bf16) {
  const double held = strategy == "no_shard" ? sizes.total : sizes.total / ranks;
  ShardEstimate estimate{.strategy = std::string(strategy),
                         .precision = bf16 ? "bf16" : "float32",
                         .weights = held,
                         .gradients = held,
                         .optimizer = 2 * held,
                         .units = whole_units(strategy, sizes, bf16 ? 0.5 : 1)};
  const double shards = estimate.weights + estimate.gradients + estimate.optimizer;
  estimate.host = strategy == kOffloaded ? shards : 0;
  estimate.peak = estimate.units + shards - estimate.host;
  return estimate;
}

}  // namespace

WeightSizes read_weight_sizes(const fs::path& path) {
  const WeightSources weights = weights_at(path);
  WeightSizes sizes;
  for (const auto& tensor : weights.tensors) {
    if (tensor.same_as) continue;
    ++sizes.tensors;
    sizes.total += bytes_as_trained(tensor);
  }
  for (const auto& [name, bytes] : layers_of(weights.tensors)) {
    if (bytes > sizes.largest_layer) sizes.largest_names.clear();
    if (bytes >= sizes.largest_layer) sizes.largest_names.push_back(name);
    sizes.largest_layer = std::max(sizes.largest_layer, bytes);
  }
  return sizes;
}

std::vector<std::string> estimated_dtypes() {
  std::vector<std::string> names;
  for (const auto& dtype : kEstimatedDtypes) names.emplace_back(dtype.name);
  return names;
}

std::map<std::string, std::string> other_dtype_names() {
  return {{"fp32", "float32"}, {"float", "float32"}, {"fp16", "float16"}, {"half", "float16"}, {"bf16", "bfloat16"}};
}

MemoryEstimate estimate_memory(const WeightSizes& sizes, std::string_view dtype) {
  const auto* found =
      std::find_if(kEstimatedDtypes.begin(), kEstimatedDtypes.end(), [&](const auto& one) { return one.name == dtype; });
  if (found == kEstimatedDtypes.end()) throw UsageError("Cannot estimate memory for the dtype '" + std::string(dtype) + "'.");
  MemoryEstimate estimate{.dtype = std::string(dtype),
                          .largest_layer = sizes.largest_layer / found->smaller,
                          .total_size = sizes.total / found->smaller,
                          .training = std::nullopt};
  if (found->training > 0) estimate.training = sizes.total * found->training;
  return estimate;
}

std::string estimates_table(const std::string& model, const std::vector<MemoryEstimate>& estimates) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& estimate : estimates) {
    const bool divided = estimate.dtype != "float32";
    rows.push_back({estimate.dtype, memory_text(estimate.largest_layer, divided), memory_text(estimate.total_size, divided),
                    estimate.training ? memory_text(*estimate.training, /*divided=*/false) : "N/A"});
  }
  return box_table("Memory Usage for loading `" + model + "`", {"dtype", "Largest Layer", "Total Size", "Training using Adam"},
                   rows);
}

std::vector<ShardEstimate> estimate_sharding(const WeightSizes& sizes, int ranks) {
  std::vector<ShardEstimate> estimates;
  for (const bool bf16 : {false, true}) {
    for (const std::string_view strategy :
         {std::string_view("no_shard"), std::string_view("shard_grad_op"), std::string_view("full_shard"), kOffloaded}) {
      estimates.push_back(estimate_strategy(sizes, ranks, strategy, bf16));
    }
  }
  return estimates;
}

std::string sharding_table(const std::string& model, int ranks, const std::vector<ShardEstimate>& estimates) {
  std::vector<std::vector<std::string>> rows;
  const auto text = [](double bytes) { return memory_text(bytes, /*divided=*/false); };
  for (const auto& estimate : estimates) {
    rows.push_back({estimate.precision, estimate.strategy, text(estimate.weights), text(estimate.gradients),
                    text(estimate.optimizer), text(estimate.units), text(estimate.peak), text(estimate.host)});
  }
  return box_table(
      accelerate::format("Memory per rank for training `{}` with Adam on {} rank{}", model, ranks, ranks == 1 ? "" : "s"),
      {"Precision", "Strategy", "Weights", "Gradients", "Optimizer", "Whole Units", "Peak on Device", "Host"}, rows);
}

}  // namespace accelerate::detail
