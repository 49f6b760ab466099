#pragma once

#include <ATen/core/TensorBody.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accelerate {

/// Makes two parameters one, as `head.weight = embedding.weight` does in Python: `member`, which is a parameter that `module`
/// itself has registered, becomes `shared`, in the module's member and in its list of parameters. To be called in a constructor,
/// or at any rate before an optimizer is made and before `prepare`. UsageError when `member` is not registered there, or when
/// shapes differ.
///
///   accelerate::tie_weights(*head, head->weight, embedding->weight);
void tie_weights(torch::nn::Module& module, at::Tensor& member, const at::Tensor& shared);

/// Names of parameters that are one: the same tensor, or tensors that lie on the same memory with the same shape. Each group is
/// sorted. Assigning a registered parameter's member (`head->weight = embedding->weight`) ties nothing that a module knows of,
/// and `set_data` makes two parameters on one memory, which cannot be trained: use tie_weights.
std::vector<std::vector<std::string>> find_tied_parameters(const torch::nn::Module& model);

}  // namespace accelerate
