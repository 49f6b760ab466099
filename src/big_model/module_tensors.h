#pragma once

#include <ATen/core/TensorBody.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

/// The tensors and children of modules as Python lists them.
namespace accelerate::detail {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// A module's own parameters or buffers, and its children. None of them comes twice.
std::vector<NamedTensor> own_parameters(const torch::nn::Module& module);
std::vector<NamedTensor> own_buffers(const torch::nn::Module& module);
std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> own_children(const torch::nn::Module& module);

/// Those of a module and of all below it under every name they have, each module's own before those of its children.
std::vector<NamedTensor> all_parameters(const torch::nn::Module& module);
std::vector<NamedTensor> all_buffers(const torch::nn::Module& module);

/// Which tensors are one? Those that are the same object, and those that lie on the same memory in the same shape, as after
/// `set_data`.
class SameTensors {
 public:
  /// A number that all tensors have which are the same as this one, and no other; counted from 0.
  size_t number_of(const at::Tensor& tensor);

 private:
  using Identity = std::pair<const void*, std::vector<int64_t>>;
  static Identity identity_of(const at::Tensor& tensor);

  std::map<Identity, size_t> numbers_;
};

/// Without those that are the same as one before them.
std::vector<NamedTensor> each_once(std::vector<NamedTensor> tensors);

}  // namespace accelerate::detail
