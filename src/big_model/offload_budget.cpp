#include "big_model/offload_budget.h"

#include <accelerate/core/error.h>
#include <fmt/format.h>

#include <algorithm>

namespace accelerate::detail {
namespace {

/// Room for the layer that is used, the one before and the one to come.
constexpr uint64_t kLayersByDefault = 3;

}  // namespace

uint64_t offload_budget_of(const OffloadNeeds& needs) {
  uint64_t budget = kLayersByDefault * needs.largest;
  if (needs.limit) budget = *needs.limit > needs.resident ? *needs.limit - needs.resident : 0;
  if (needs.budget) budget = *needs.budget;
  if (budget >= needs.largest) return budget;
  if (needs.device.is_cpu()) return needs.largest;
  const std::string device = needs.device.str();
  throw UsageError(fmt::format(
      "{} is too small for the layer {}, which takes {} bytes there while it is used; offloaded weights may take {} bytes{}. "
      "Raise {}, or keep fewer weights on the device.",
      device, needs.largest_name.empty() ? "of the model's own weights" : needs.largest_name, needs.largest, budget,
      needs.budget ? "" : fmt::format(": {} less {} of weights that stay there", *needs.limit, needs.resident),
      needs.budget ? "offload_budget" : "max_memory of " + device));
}

}  // namespace accelerate::detail
