#include <accelerate/big_model/max_memory.h>
#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "big_model/available_memory.h"
#include "big_model/module_tensors.h"
#include "big_model/places_in_order.h"
#include "core/class_name.h"
#include "distributed/accelerators.h"

namespace accelerate {

using namespace detail;
namespace {

MaxMemory memory_of_this_machine() {
  MaxMemory memory;
  for (int index = 0; index < accelerator_count(); ++index) {
    if (const auto free = free_accelerator_memory(index)) {
      memory[Place(index)] = *free;
    } else {
      get_logger("accelerate")
          .info("The memory of accelerator {} is unknown, so it gets no weights. Set its limit in max_memory.", index);
    }
  }
  memory[c10::kCPU] = available_host_memory();
  return memory;
}

void collect_classes(const torch::nn::Module& module, const std::string& prefix, std::map<std::string, std::string>& classes) {
  for (const auto& [name, child] : own_children(module)) {
    classes[prefix + name] = child->name();
    collect_classes(*child, prefix + name + ".", classes);
  }
}

/// The largest of the first modules of each class that is not split, first in the order of `sizes`; 0 when there is none.
double largest_unsplit(const torch::nn::Module& model, const ModuleSizes& sizes,
                       const std::vector<std::string>& unsplit_classes) {
  std::map<std::string, std::string> classes;
  collect_classes(model, "", classes);
  std::set<std::string> seen;
  double largest = 0;
  for (const auto& [name, size] : sizes) {
    const auto found = classes.find(name);
    if (found == classes.end() || !any_names_class(unsplit_classes, found->second)) continue;
    if (seen.insert(found->second).second) largest = std::max(largest, size);
  }
  return largest;
}

/// Names that are no part of a longer one.
std::set<std::string> leaves_of(const std::set<std::string>& names) {
  std::set<std::string> leaves = names;
  for (const auto& name : names) {
    const size_t dot = name.rfind('.');
    if (dot != std::string::npos) leaves.erase(name.substr(0, dot));
  }
  leaves.erase("");
  return leaves;
}

/// Mean size of modules that hold tensors and no modules, in whole bytes.
double mean_final_module(const ModuleSizes& sizes) {
  std::set<std::string> names;
  for (const auto& entry : sizes) names.insert(entry.first);
  for (const auto& tensor : leaves_of(names)) names.erase(tensor);
  const auto modules = leaves_of(names);
  double sum = 0;
  for (const auto& name : modules) sum += sizes.at(name);
  return std::trunc(sum / static_cast<double>(std::max<size_t>(modules.size(), 1)));
}

/// What an accelerator may hold so that all of them hold the model: an even share, and room for a layer, since layers do not
/// fill shares exactly.
double share_of_each(const torch::nn::Module& model, const ModuleSizes& sizes, const std::vector<std::string>& classes,
                     int accelerators) {
  const double unsplit = classes.empty() ? 0 : largest_unsplit(model, sizes, classes);
  return std::floor(sizes.at("") / accelerators) + std::trunc(1.25 * std::max(unsplit, mean_final_module(sizes)));
}

void leave_first_free(MaxMemory& memory, int accelerators, double total) {
  const Place first = 0;
  if (!memory.contains(first)) return;
  for (int index = 1; index < accelerators; ++index) {
    if (const ByteSize* limit = memory.find(Place(index))) total -= limit->bytes();
  }
  memory[first] = std::min(std::max(0.0, total), memory.at(first).bytes());
}

}  // namespace

MaxMemory detail::in_filling_order(const MaxMemory& max_memory) {
  std::vector<MaxMemory::Item> items(max_memory.begin(), max_memory.end());
  std::sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  MaxMemory ordered;
  for (const auto& [place, limit] : items) {
    if (place == Place(c10::kMeta))
      throw UsageError("max_memory has a limit for meta, which holds no weights. Give it for accelerators, cpu and disk.");
    ordered[place] = limit;
  }
  return ordered;
}

MaxMemory get_max_memory(const MaxMemory& max_memory) {
  if (max_memory.empty()) return memory_of_this_machine();
  const int count = accelerator_count();
  for (const auto& entry : max_memory) {
    if (!entry.first.is_indexed() || entry.first.device().index() < count) continue;
    get_logger("accelerate").warning("max_memory has a limit for accelerator {}, but this host has {}.", entry.first, count);
  }
  return in_filling_order(max_memory);
}

MaxMemory get_balanced_memory(const torch::nn::Module& model, const BalancedMemoryOptions& options) {
  const bool given = !options.max_memory.empty();
  MaxMemory memory = given ? in_filling_order(options.max_memory) : memory_of_this_machine();
  std::vector<Place> usable;
  for (const auto& [place, limit] : memory) {
    if (place.is_indexed() && limit > ByteSize(0)) usable.push_back(place);
  }
  if (usable.empty()) return memory;
  const bool low_zero = options.low_zero && usable.size() > 1;
  // With default limits, the first activations should not run out of memory.
  if (!given && usable.size() == 1) memory[usable.front()] = memory.at(usable.front()).bytes() * 0.9;
  const ModuleSizes sizes = compute_module_sizes(model, {.dtype = options.dtype, .special_dtypes = options.special_dtypes});
  if (sizes.empty()) return memory;
  const int accelerators = static_cast<int>(usable.size());
  const double share = share_of_each(model, sizes, options.no_split_module_classes, low_zero ? accelerators - 1 : accelerators);
  usable.pop_back();  // the last keeps its limit, should the shares prove too small
  for (const Place& place : usable) {
    if (!(low_zero && place == Place(0))) memory[place] = std::min(share, memory.at(place).bytes());
  }
  if (low_zero) leave_first_free(memory, accelerators, sizes.at(""));
  return memory;
}

}  // namespace accelerate
