#include "parallel/known_parameters.h"

#include <accelerate/core/error.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "residency/interception.h"

namespace accelerate::detail {

KnownParameters::KnownParameters(const torch::nn::Module& module) {
  std::unordered_set<const void*> seen;  // one that is tied has several names
  for (const auto& part : module.modules()) {
    bool first = true;
    for (const auto& parameter : part->parameters(/*recurse=*/false)) {
      if (!parameter.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      known_.push_back({parameter, parameter.dtype(), parameter.device(), parameter.requires_grad()});
      flags_.push_back({torch::autograd::impl::materialize_autograd_meta(parameter), parameter.requires_grad()});
      if (std::exchange(first, false)) types_.push_back({parameter.unsafeGetTensorImpl(), parameter.dtype(), parameter.device()});
    }
  }
}

bool KnownParameters::is_as_known() const {
  bool changed = false;
  for (const auto& flag : flags_) changed |= flag.meta->requires_grad_ != flag.trained;
  // One parameter alone that somebody converts is refused by the reducer.
  for (const auto& type : types_) changed |= (type.tensor->dtype() != type.dtype) | (type.tensor->device() != type.device);
  return !changed;
}

bool KnownParameters::are_outdated(bool find_unused_parameters) const {
  if (is_as_known()) return false;
  bool some_trained = false, some_frozen = false;
  for (const auto& known : known_) {
    if (!known.tensor.requires_grad()) {
      some_frozen |= known.trained;
      continue;
    }
    if (!known.trained || known.is_converted()) return true;
    some_trained = true;
  }
  // All of a model frozen is a turn of another one, as of a generator and its critic.
  return some_frozen && some_trained && !find_unused_parameters;
}

std::vector<std::string> KnownParameters::unknown(const torch::nn::Module& module) const {
  std::unordered_set<const void*> known;
  for (const auto& each : known_) known.insert(each.tensor.unsafeGetTensorImpl());
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
    if (known.tensor.requires_grad() && !known.trained) unfrozen.push_back(known.tensor);
  }
  return unfrozen;
}

void check_tied_by_memory(const std::vector<NamedParameter>& parameters) {
  struct Range {
    const NamedParameter* parameter;
    const char *begin, *end;
  };
  std::vector<Range> ranges;
  std::unordered_set<const void*> seen;  // one that has several names is one parameter
  for (const auto& each : parameters) {
    const auto& tensor = each.tensor;
    if (!tensor.defined() || !tensor.requires_grad() || tensor.layout() != at::kStrided || tensor.numel() == 0 ||
        tensor.is_meta() || has_key(tensor) || !seen.insert(tensor.unsafeGetTensorImpl()).second)
      continue;
    const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
    // Views with gaps, such as columns of one matrix, lie between each other and share nothing.
    const auto bytes = tensor.is_non_overlapping_and_dense() ? tensor.nbytes() : tensor.element_size();
    ranges.push_back({&each, begin, begin + bytes});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin >= ranges[i - 1].end) continue;
    auto [first, second] = std::minmax(ranges[i - 1].parameter, ranges[i].parameter);  // in the order of their module
    throw UsageError("The parameters " + first->name + " and " + second->name +
                     " share memory but are separate parameters, as after set_data: each would have its own gradient and "
                     "optimizer state, and both would update it. Tie them before the optimizer is constructed, with "
                     "accelerate::tie_weights(*head, head->weight, embedding->weight), or use one weight twice in forward. For a "
                     "module that is not trained, call prepare_model(module, {.evaluation_mode = true}).");
  }
}

std::vector<NamedParameter> named_parameters_of(const torch::nn::Module& module) {
  std::vector<NamedParameter> named;
  for (const auto& item : module.named_parameters()) named.push_back({item.key() + " of " + module.name(), item.value()});
  return named;
}

}  // namespace accelerate::detail
