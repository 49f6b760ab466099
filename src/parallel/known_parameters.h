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
    at::Tensor tensor;
    caffe2::TypeMeta dtype;
    at::Device device;
    bool trained;

    bool is_converted() const { return tensor.dtype() != dtype || tensor.device() != device; }
  };
  /// What is looked at before every forward pass, close together.
  struct Flag {
    const torch::autograd::AutogradMeta* meta;
    bool trained;
  };
  struct Type {
    const c10::TensorImpl* tensor;
    caffe2::TypeMeta dtype;
    at::Device device;
  };
  bool is_as_known() const;

  std::vector<Known> known_;
  std::vector<Flag> flags_;
  std::vector<Type> types_;  // of one parameter of each module: `to` converts them together
};

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};
/// "fc.weight of NetImpl" and so on.
std::vector<NamedParameter> named_parameters_of(const torch::nn::Module& module);

/// UsageError, with the names, when two trained parameters lie on the same memory (`set_data`): each would get a gradient and a
/// state of its own, and both would move it.
void check_tied_by_memory(const std::vector<NamedParameter>& parameters);

}  // namespace accelerate::detail
