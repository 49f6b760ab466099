#include <accelerate/big_model/tied_parameters.h>
#include <accelerate/core/error.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "big_model/module_tensors.h"
#include "distributed/tensor_text.h"
#include "rendezvous/torch_private_access.h"

namespace accelerate {

using namespace detail;

void tie_weights(torch::nn::Module& module, at::Tensor& member, const at::Tensor& shared) {
  for (auto& item : torch_private::own_parameters_of(module)) {
    if (!item.value().is_same(member)) continue;
    if (!shared.defined() || shared.sizes() != member.sizes()) {
      throw UsageError("tie_weights was given " + item.key() + " of " + module.name() + ", " + describe(member) + ", and " +
                       describe(shared) + " to share: expected the same shape.");
    }
    item.value() = member = shared;
    return;
  }
  throw UsageError("tie_weights was given a tensor that is not a parameter of " + module.name() +
                   " itself. Give the module that registered it, as in tie_weights(*head, head->weight, "
                   "embedding->weight).");
}

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
