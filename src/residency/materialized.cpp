#include <accelerate/residency/materialized.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "residency/managed_storage.h"
#include "residency/pins.h"

namespace accelerate {

using namespace detail;
namespace {

std::vector<at::Tensor> tensors_of(const torch::nn::Module& module) {
  auto tensors = module.parameters();
  const auto buffers = module.buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  return tensors;
}

}  // namespace

struct MaterializedScope::Pins : detail::Pins {};

bool has_offloaded_params(const torch::nn::Module& module) {
  const auto tensors = tensors_of(module);
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    const auto* record = record_of(tensor);
    return record && record->absence == Absence::offloaded;
  });
}

MaterializedScope::MaterializedScope(const torch::nn::Module& module) : pins_(std::make_unique<Pins>()) {
  for (const auto& tensor : tensors_of(module)) pins_->add(tensor, false);
  pins_->pin();
}

MaterializedScope::~MaterializedScope() = default;

}  // namespace accelerate
