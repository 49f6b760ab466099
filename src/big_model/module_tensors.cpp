#include "big_model/module_tensors.h"

#include <torch/nn/module.h>

#include <algorithm>

namespace accelerate::detail {
namespace {

using TensorsOf = torch::OrderedDict<std::string, at::Tensor> (torch::nn::Module::*)(bool) const;

void add_own(const torch::nn::Module& module, TensorsOf tensors_of, const std::string& prefix, std::vector<NamedTensor>& all) {
  for (const auto& item : (module.*tensors_of)(/*recurse=*/false)) {
    if (item.value().defined()) all.push_back({prefix + item.key(), item.value()});
  }
}

void add_all(const torch::nn::Module& module, TensorsOf tensors_of, const std::string& prefix, std::vector<NamedTensor>& all) {
  add_own(module, tensors_of, prefix, all);
  for (const auto& [name, child] : own_children(module)) add_all(*child, tensors_of, prefix + name + ".", all);
}

std::vector<NamedTensor> own(const torch::nn::Module& module, TensorsOf tensors_of) {
  std::vector<NamedTensor> tensors;
  add_own(module, tensors_of, "", tensors);
  return each_once(std::move(tensors));
}

std::vector<NamedTensor> all(const torch::nn::Module& module, TensorsOf tensors_of) {
  std::vector<NamedTensor> tensors;
  add_all(module, tensors_of, "", tensors);
  return tensors;
}

}  // namespace

std::vector<NamedTensor> own_parameters(const torch::nn::Module& module) {
  return own(module, &torch::nn::Module::named_parameters);
}
std::vector<NamedTensor> own_buffers(const torch::nn::Module& module) { return own(module, &torch::nn::Module::named_buffers); }
std::vector<NamedTensor> all_parameters(const torch::nn::Module& module) {
  return all(module, &torch::nn::Module::named_parameters);
}
std::vector<NamedTensor> all_buffers(const torch::nn::Module& module) { return all(module, &torch::nn::Module::named_buffers); }

std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> own_children(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> children;
  for (const auto& item : module.named_children()) {
    const bool known = std::any_of(children.begin(), children.end(), [&](const auto& one) { return one.second == item.value(); });
    if (!known) children.emplace_back(item.key(), item.value());
  }
  return children;
}

SameTensors::Identity SameTensors::identity_of(const at::Tensor& tensor) {
  // All empty tensors may have one storage, and tensors without any have none to compare.
  if (!tensor.has_storage() || tensor.numel() == 0) return {tensor.unsafeGetTensorImpl(), {}};
  std::vector<int64_t> form = {tensor.storage_offset(), static_cast<int64_t>(tensor.scalar_type())};
  form.insert(form.end(), tensor.sizes().begin(), tensor.sizes().end());
  form.insert(form.end(), tensor.strides().begin(), tensor.strides().end());
  return {tensor.storage().unsafeGetStorageImpl(), std::move(form)};
}

size_t SameTensors::number_of(const at::Tensor& tensor) {
  return numbers_.try_emplace(identity_of(tensor), numbers_.size()).first->second;
}

std::vector<NamedTensor> each_once(std::vector<NamedTensor> tensors) {
  SameTensors same;
  size_t seen = 0;
  std::erase_if(tensors, [&](const NamedTensor& one) {
    const bool is_new = same.number_of(one.tensor) == seen;
    if (is_new) ++seen;
    return !is_new;
  });
  return tensors;
}

}  // namespace accelerate::detail
