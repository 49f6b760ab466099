#pragma once

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accelerate {

/// Names of parameters that are one: the same tensor, or tensors that lie on the same memory with the same shape. Each group is
/// sorted. Assigning a registered parameter's member (`head->weight = embedding->weight`) ties nothing that a module knows of:
/// use `head->weight.set_data(embedding->weight)`.
std::vector<std::vector<std::string>> find_tied_parameters(const torch::nn::Module& model);

}  // namespace accelerate
