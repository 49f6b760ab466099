#pragma once

#include <torch/torch.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

/// Models built from a description: tensors and children under given names, of classes of any name.
namespace described {

struct Tensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape = {};
};

struct Tree {
  std::string class_name;
  std::vector<Tensor> parameters = {}, buffers = {};
  std::vector<std::pair<std::string, Tree>> children = {};
};

/// Names of one parameter each; all have the tensor of the first.
using Ties = std::vector<std::vector<std::string>>;

struct Model : torch::nn::Module {
  using torch::nn::Module::Module;
};

/// Fills modules in order; what is tied is made once.
class Builder {
 public:
  Builder(const Ties& ties, at::Device device) : device_(device) {
    for (size_t group = 0; group < ties.size(); ++group) {
      for (const auto& name : ties[group]) group_of_[name] = group;
    }
  }

  std::shared_ptr<Model> build(const Tree& tree, const std::string& prefix = "") {
    auto model = std::make_shared<Model>(tree.class_name);
    for (const auto& one : tree.parameters) model->register_parameter(one.name, parameter(one, prefix + one.name), false);
    for (const auto& one : tree.buffers) model->register_buffer(one.name, tensor(one));
    for (const auto& [name, child] : tree.children) model->register_module(name, build(child, prefix + name + "."));
    return model;
  }

 private:
  at::Tensor tensor(const Tensor& one) const { return torch::empty(one.shape, at::dtype(one.dtype).device(device_)); }

  at::Tensor parameter(const Tensor& one, const std::string& name) {
    const auto group = group_of_.find(name);
    if (group == group_of_.end()) return tensor(one);
    auto& shared = made_[group->second];
    if (!shared.defined()) shared = tensor(one);
    return shared;
  }

  at::Device device_;
  std::map<std::string, size_t> group_of_;
  std::map<size_t, at::Tensor> made_;
};

/// Sizes and maps look at nothing but shapes and dtypes, so the tensors are on the meta device unless told otherwise.
inline std::shared_ptr<Model> build(const Tree& tree, const Ties& ties = {}, at::Device device = at::kMeta) {
  return Builder(ties, device).build(tree);
}

}  // namespace described
