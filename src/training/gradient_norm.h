#pragma once

#include <accelerate/training/clip.h>

#include "training/tensor_group.h"

namespace accelerate::detail {

/// The norm of all of them, as if they were one vector.
at::Tensor total_norm_of(const std::vector<TensorGroup>& kinds, double norm_type);

/// UsageError where the options ask for one.
void check_finite(const at::Tensor& total, const ClipGradNormOptions& options);

}  // namespace accelerate::detail
