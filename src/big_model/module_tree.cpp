#include "big_model/module_tree.h"

#include <torch/nn/module.h>

#include "big_model/module_tensors.h"
#include "core/class_name.h"

namespace accelerate::detail {
namespace {

/// What the parts of a model are made with.
struct PartFacts {
  const ModuleSizes& sizes;
  const ModuleSizes& buffers;
  const std::vector<std::string>& no_split_module_classes;
};

double size_in(const ModuleSizes& sizes, const std::string& name) {
  const double* size = sizes.find(name);
  return size == nullptr ? 0 : *size;  // a module without tensors, or a tensor that counts under another name
}

ModulePart module_part(const torch::nn::Module& module, const std::string& name, const PartFacts& facts) {
  const std::string prefix = name.empty() ? "" : name + ".";
  ModulePart part{
      .name = name, .size = size_in(facts.sizes, name), .buffers_size = size_in(facts.buffers, name), .is_module = true};
  const auto tensor_parts = [&](const std::vector<NamedTensor>& tensors) {
    std::vector<ModulePart> parts;
    for (const auto& own : tensors) parts.push_back({.name = prefix + own.name, .size = size_in(facts.sizes, prefix + own.name)});
    return parts;
  };
  part.parameters = tensor_parts(own_parameters(module));
  part.buffers = tensor_parts(own_buffers(module));
  for (const auto& [child_name, child] : own_children(module)) {
    part.children.push_back(module_part(*child, prefix + child_name, facts));
  }
  part.is_layer = part.children.empty() || any_names_class(facts.no_split_module_classes, module.name());
  return part;
}

void find_largest(const ModulePart& part, LayerSize& largest) {
  if (!part.is_layer) {
    for (const auto& child : part.children) find_largest(child, largest);
  } else if (part.size > largest.size) {
    largest = {part.size, {part.name}};
  } else if (part.size == largest.size) {
    largest.names.push_back(part.name);
  }
}

}  // namespace

bool ModulePart::contains(const std::string& other) const {
  return other.starts_with(name) && (other.size() == name.size() || other[name.size()] == '.');
}

ModulePart module_parts(const torch::nn::Module& model, const ModuleSizes& sizes, const ModuleSizes& buffers,
                        const std::vector<std::string>& no_split_module_classes) {
  return module_part(model, "", {sizes, buffers, no_split_module_classes});
}

std::vector<const ModulePart*> parts_in_order(const ModulePart& model) {
  std::vector<const ModulePart*> parts;
  for (const auto* group : {&model.parameters, &model.children, &model.buffers}) {
    for (const auto& part : *group) parts.push_back(&part);
  }
  return parts;
}

LayerSize largest_layer(const std::vector<const ModulePart*>& parts) {
  LayerSize largest;
  for (const ModulePart* part : parts) find_largest(*part, largest);
  return largest;
}

}  // namespace accelerate::detail
