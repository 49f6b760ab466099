#include "training/weight_probe.h"

#include <torch/nn/modules/embedding.h>

#include <algorithm>

#include "residency/interception.h"

namespace accelerate::detail {
namespace {

constexpr size_t kProbes = 4;
constexpr int64_t kElements = 64;

bool can_be_probed(const at::Tensor& parameter) {
  return parameter.defined() && parameter.requires_grad() && parameter.layout() == at::kStrided && parameter.numel() > 0 &&
         !parameter.is_meta() && parameter.is_non_overlapping_and_dense() && !has_key(parameter);
}

}  // namespace

WeightProbe::WeightProbe(const torch::nn::Module& module) {
  for (const auto& part : module.modules()) {
    if (part->as<torch::nn::Embedding>() != nullptr || part->as<torch::nn::EmbeddingBag>() != nullptr) continue;
    const auto parameters = part->parameters(/*recurse=*/false);
    std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(probed_), can_be_probed);
  }
  std::stable_sort(probed_.begin(), probed_.end(), [](const auto& a, const auto& b) { return a.numel() < b.numel(); });
  probed_.resize(std::min(probed_.size(), kProbes));
  waits_ = std::any_of(probed_.begin(), probed_.end(), [](const auto& parameter) { return !parameter.is_cpu(); });
}

bool WeightProbe::may_look() { return !waits_ || looks_ < 2; }

void WeightProbe::remember() {
  remembered_ = may_look();
  if (remembered_) seen_ = look();
}

bool WeightProbe::has_changed() {
  if (!remembered_ || !may_look()) return false;
  ++looks_;
  return look() != seen_;
}

std::string WeightProbe::look() const {
  std::string bytes;
  for (const auto& parameter : probed_) {
    const auto elements = std::min(parameter.numel(), kElements);
    at::Tensor there;
    if (!parameter.is_cpu()) there = parameter.detach().as_strided({elements}, {1}).cpu();
    const auto& here = parameter.is_cpu() ? parameter : there;
    bytes.append(static_cast<const char*>(here.const_data_ptr()), static_cast<size_t>(elements) * here.element_size());
  }
  return bytes;
}

}  // namespace accelerate::detail
