#pragma once

#include <accelerate/big_model/module_sizes.h>

#include <string>
#include <vector>

/// A model as those see it who place its parts: names and sizes.
namespace accelerate::detail {

/// A module, or a tensor that a module has of its own.
struct ModulePart {
  std::string name;
  /// Bytes of it and of all below it.
  double size = 0;
  /// Bytes of the buffers among them.
  double buffers_size = 0;
  bool is_module = false;
  /// Cannot be divided: a tensor, a module without children or one of a class that is never split.
  bool is_layer = true;
  /// Of a module: its own tensors, and its children.
  std::vector<ModulePart> parameters = {}, children = {}, buffers = {};

  /// Is it the tensor or module `other`, or does it contain that?
  bool contains(const std::string& other) const;
};

/// The parts of a model. `buffers` are the sizes of buffers alone.
ModulePart module_parts(const torch::nn::Module& model, const ModuleSizes& sizes, const ModuleSizes& buffers,
                        const std::vector<std::string>& no_split_module_classes);

/// What a model is made of directly: its own parameters, its children, its own buffers.
std::vector<const ModulePart*> parts_in_order(const ModulePart& model);

/// The largest of the layers in `parts`.
LayerSize largest_layer(const std::vector<const ModulePart*>& parts);

}  // namespace accelerate::detail
