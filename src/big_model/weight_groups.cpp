#include "big_model/weight_groups.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_map>

#include "core/class_name.h"

namespace accelerate::detail {
namespace {

class GroupCollector {
 public:
  explicit GroupCollector(const std::vector<std::string>& kept_together) : kept_together_(kept_together) {}

  void add_module(const torch::nn::Module& module, const std::string& prefix, const std::string* unit) {
    const bool together = !unit && any_names_class(kept_together_, module.name());
    const std::string& own_unit = unit ? *unit : prefix;
    for (const auto& item : module.named_parameters(/*recurse=*/false)) add(prefix + item.key(), item.value(), false, own_unit);
    for (const auto& item : module.named_buffers(/*recurse=*/false)) add(prefix + item.key(), item.value(), true, own_unit);
    for (const auto& child : module.named_children()) {
      add_module(*child.value(), prefix + child.key() + ".", unit || together ? &own_unit : nullptr);
    }
  }

  std::vector<WeightGroup> take() { return std::move(groups_); }

 private:
  void add(std::string name, const at::Tensor& tensor, bool buffer, const std::string& unit) {
    if (!tensor.defined()) return;
    const auto [place, fresh] = places_.try_emplace(tensor.storage().unsafeGetStorageImpl(), groups_.size());
    if (fresh) groups_.push_back({.weights = {}, .unit = unit});
    groups_[place->second].weights.push_back({std::move(name), tensor, buffer});
  }

  const std::vector<std::string>& kept_together_;
  std::vector<WeightGroup> groups_;
  std::unordered_map<const void*, size_t> places_;  // of storages in groups_
};

}  // namespace

bool WeightGroup::is_one_tensor() const {
  const at::Tensor& first = tensor();
  return first.is_contiguous() && first.storage_offset() == 0 && first.nbytes() == storage_bytes() &&
         std::all_of(weights.begin(), weights.end(), [&](const ModelWeight& other) {
           return other.tensor.scalar_type() == first.scalar_type() && other.tensor.sizes() == first.sizes() &&
                  other.tensor.strides() == first.strides() && other.tensor.storage_offset() == 0;
         });
}

bool WeightGroup::is_buffer() const {
  return std::all_of(weights.begin(), weights.end(), [](const ModelWeight& weight) { return weight.buffer; });
}

std::vector<WeightGroup> weight_groups(const torch::nn::Module& model, const std::vector<std::string>& kept_together) {
  GroupCollector collector(kept_together);
  collector.add_module(model, "", nullptr);
  return collector.take();
}

}  // namespace accelerate::detail
