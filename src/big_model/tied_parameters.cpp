#include <accelerate/big_model/tied_parameters.h>

#include <algorithm>

#include "big_model/module_tensors.h"

namespace accelerate {

std::vector<std::vector<std::string>> find_tied_parameters(const torch::nn::Module& model) {
  SameTensors same;
  std::vector<std::vector<std::string>> groups;
  for (const auto& [name, tensor] : all_parameters(model)) {
    const size_t number = same.number_of(tensor);
    if (number == groups.size()) groups.emplace_back();
    groups[number].push_back(name);
  }
  std::erase_if(groups, [](const auto& names) { return names.size() < 2; });
  for (auto& names : groups) std::sort(names.begin(), names.end());
  return groups;
}

}  // namespace accelerate
