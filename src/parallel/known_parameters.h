#pragma once

#include <ATen/core/TensorBody.h>

#include <string>
#include <vector>

namespace torch {
namespace autograd {
struct AutogradMeta;
}
namespace nn {
class Module;
}
}  // namespace torch

namespace accelerate::detail {

/// The parameters of a module as they were when their gradients were last arranged to be synchronised.
class KnownParameters {
 public:
  explicit KnownParameters(const torch::nn::Module& module);
  /// Whether a frozen one is trained now, a trained one has another dtype or device, or was frozen while others are trained:
  /// its gradient would be waited for, unless unused parameters are looked for.
  bool are_outdated(bool find_unused_parameters) const;
  /// Those that are trained now and were frozen.
  std::vector<at::Tensor> unfrozen() const;
  /// The names of trained parameters of the module that are not among the known ones.
  std::vector<std::string> unknown(const torch::nn::Module& module) const;

 private:
  struct Known {
    bool is_trained() const;

    at::Tensor parameter;
    const torch::autograd::AutogradMeta* meta;  // belongs to the parameter from when it is first needed; null before
    bool trained;
    caffe2::TypeMeta dtype;
    at::Device device;
  };
  std::vector<Known> known_;
};

/// UsageError, with the names, when two trained parameters of a module lie on the same memory (`set_data`): each would get a
/// gradient and a state of its own, and both would move it.
void check_tied_by_memory(const torch::nn::Module& module);

}  // namespace accelerate::detail
