#pragma once

#include <ATen/core/TensorBody.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// A parameter or a buffer of a model under one of its names.
struct ModelWeight {
  std::string name;
  at::Tensor tensor;
  bool buffer;
};

/// Weights that lie on one storage: a weight alone, tied ones, or views of one memory. They move together.
struct WeightGroup {
  std::vector<ModelWeight> weights;
  /// What it comes and goes with: the module that has it, or one above that is to be kept together.
  std::string unit;

  const std::string& name() const { return weights[0].name; }
  const at::Tensor& tensor() const { return weights[0].tensor; }
  /// All of them are the same elements, which fill the storage in order.
  bool is_one_tensor() const;
  bool is_buffer() const;
  uint64_t storage_bytes() const { return tensor().storage().nbytes(); }
};

/// All weights of a model, in the order of its state dict. Modules of `kept_together` classes are one unit each.
std::vector<WeightGroup> weight_groups(const torch::nn::Module& model, const std::vector<std::string>& kept_together);

}  // namespace accelerate::detail
