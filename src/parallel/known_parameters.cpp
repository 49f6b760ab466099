#include "parallel/known_parameters.h"

#include <accelerate/core/error.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <map>
#include <unordered_set>

#include "residency/interception.h"

namespace accelerate::detail {

KnownParameters::KnownParameters(const torch::nn::Module& module) {
  for (const auto& parameter : module.parameters()) {
    if (!parameter.defined()) continue;
    const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(parameter.unsafeGetTensorImpl()->autograd_meta());
    known_.push_back({parameter, meta, parameter.requires_grad(), parameter.dtype(), parameter.device()});
  }
}

bool KnownParameters::Known::is_trained() const { return meta != nullptr ? meta->requires_grad_ : parameter.requires_grad(); }

// Before every forward pass, so without a call: fields of the tensors are compared.
bool KnownParameters::are_outdated(bool find_unused_parameters) const {
  bool some_trained = false, some_frozen = false;
  for (const auto& known : known_) {
    const auto& parameter = *known.parameter.unsafeGetTensorImpl();
    if (!known.is_trained()) {
      some_frozen |= known.trained;
      continue;
    }
    if (!known.trained || parameter.dtype() != known.dtype || parameter.device() != known.device) return true;
    some_trained = true;
  }
  // All of a model frozen is a turn of another one, as of a generator and its critic.
  return some_frozen && some_trained && !find_unused_parameters;
}

std::vector<std::string> KnownParameters::unknown(const torch::nn::Module& module) const {
  std::unordered_set<const void*> known;
  for (const auto& each : known_) known.insert(each.parameter.unsafeGetTensorImpl());
  std::vector<std::string> unknown;
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined() && item.value().requires_grad() && !known.contains(item.value().unsafeGetTensorImpl()))
      unknown.push_back(item.key());
  }
  return unknown;
}

std::vector<at::Tensor> KnownParameters::unfrozen() const {
  std::vector<at::Tensor> unfrozen;
  for (const auto& known : known_) {
    if (known.parameter.requires_grad() && !known.trained) unfrozen.push_back(known.parameter);
  }
  return unfrozen;
}

void check_tied_by_memory(const torch::nn::Module& module) {
  std::map<const void*, std::pair<std::string, const void*>> first_at;  // by address: its name, and which tensor it is
  for (const auto& item : module.named_parameters()) {
    const auto& parameter = item.value();
    if (!parameter.defined() || !parameter.requires_grad() || parameter.layout() != at::kStrided || parameter.numel() == 0 ||
        parameter.is_meta() || residency::has_key(parameter))
      continue;
    const void* const tensor = parameter.unsafeGetTensorImpl();
    const auto [found, is_new] = first_at.try_emplace(parameter.const_data_ptr(), item.key(), tensor);
    if (is_new || found->second.second == tensor) continue;
    throw UsageError(
        "prepare was given a module whose parameters " + found->second.first + " and " + item.key() +
        " lie on the same memory and are two parameters all the same, as after set_data: each would have a gradient and an "
        "optimizer state of its own, and both would move it. Make them one parameter before the optimizer is made, with "
        "accelerate::tie_weights(*head, head->weight, embedding->weight), or use the one weight twice in forward. A module that "
        "is not trained may be given to prepare_model(module, {.evaluation_mode = true}).");
  }
}

}  // namespace accelerate::detail
