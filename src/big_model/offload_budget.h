#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

namespace accelerate::detail {

/// What decides how much memory offloaded weights may take where they are computed with.
struct OffloadNeeds {
  c10::Device device = c10::kCPU;
  /// What the user said, and what the device may hold in all.
  std::optional<uint64_t> budget = {}, limit = {};
  /// Weights that stay there, and the largest layer that comes and goes.
  uint64_t resident = 0, largest = 0;
  std::string largest_name = {};
};

/// The bytes that they may take, enough for the largest layer. UsageError, naming the layer, when an accelerator may not hold it;
/// the CPU takes what it needs.
uint64_t offload_budget_of(const OffloadNeeds& needs);

}  // namespace accelerate::detail
