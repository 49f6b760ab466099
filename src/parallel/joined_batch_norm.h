#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <source_location>

namespace accelerate::detail {

class Communicator;

/// What a batch norm is called with. Weight, bias and statistics may be undefined.
struct BatchNormCall {
  at::Tensor input, weight, bias, running_mean, running_var;
  double momentum = 0.1, eps = 1e-5;
};

/// The batch norm of this process's part of a batch that all processes have parts of, of any number of samples each.
at::Tensor joined_batch_norm(const BatchNormCall& call, const std::shared_ptr<Communicator>& communicator,
                             std::source_location where);

}  // namespace accelerate::detail
