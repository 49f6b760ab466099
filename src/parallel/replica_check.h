#pragma once

#include <accelerate/parallel/model.h>

#include <memory>
#include <source_location>
#include <string>
#include <vector>

namespace accelerate::detail {

/// Compares checksums of the weights of prepared models across ranks, in one small all-gather. Returns what differs, the same
/// text on every rank; "" when nothing does. Models that ranks step each for itself (no_sync, LocalSGD), offloaded weights and
/// buffers are left out; inside join_uneven_inputs nothing is compared.
std::string replicas_that_differ(const ProcessState& state, const std::vector<std::shared_ptr<ModelCore>>& models,
                                 const char* call, std::source_location where);

}  // namespace accelerate::detail
