#include "activations/kept_tensor.h"

#include <accelerate/core/error.h>

#include "activations/saved_layout.h"
#include "residency/interception.h"

namespace accelerate::detail {
namespace {

/// Tensors of InferenceMode have none.
uint32_t version_of(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : static_cast<uint32_t>(tensor._version()); }

}  // namespace

bool is_weight(const at::Tensor& tensor) {
  if (has_key(tensor)) return true;
  if (tensor.is_leaf()) return tensor.requires_grad();
  if (!tensor.is_view()) return false;
  const auto& base = tensor._base();
  return base.is_leaf() && base.requires_grad();
}

KeptTensor::KeptTensor(const at::Tensor& tensor) : tensor_(tensor.detach()), version_(version_of(tensor)) {}

bool KeptTensor::is_changed() const { return version_of(tensor_) != version_; }

void KeptTensor::refuse(const std::string& what) const {
  throw UsageError(what + " saved a tensor (" + SavedLayout(tensor_).text() +
                   ") for the backward pass that was changed in place afterwards: it is at version " +
                   std::to_string(version_of(tensor_)) + " and was saved at version " + std::to_string(version_) +
                   ". Use the operator that makes a new tensor, or change a clone().");
}

}  // namespace accelerate::detail
