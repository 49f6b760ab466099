#pragma once

#include <accelerate/core/ordered_map.h>
#include <c10/core/ScalarType.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accelerate {

/// Bytes by the names of tensors and of all modules that contain them ("" is the model). Not always whole: a bool counts as an
/// eighth of a byte.
using ModuleSizes = OrderedMap<std::string, double>;

/// Dtypes that some tensors have when they are loaded, by name.
using SpecialDtypes = std::map<std::string, c10::ScalarType>;

/// Bytes of an element as sizes count them: bool 1/8, int2 1/4, int4 1/2, all float8 1, the others their own size.
double dtype_byte_size(c10::ScalarType dtype);

struct ModuleSizeOptions {
  /// What floating-point tensors become when they are loaded; those that are smaller stay as they are.
  std::optional<c10::ScalarType> dtype = std::nullopt;
  /// What single tensors become, whatever they are.
  SpecialDtypes special_dtypes = {};
  /// Buffers alone.
  bool buffers_only = false;
};

/// Bytes of each tensor and module. A tensor under several names counts under the first. Meta tensors count as if they were real.
ModuleSizes compute_module_sizes(const torch::nn::Module& model, const ModuleSizeOptions& options = {});

/// Bytes of all buffers.
double compute_module_total_buffer_size(const torch::nn::Module& model, const ModuleSizeOptions& options = {});

/// The largest layer, and all layers of that size.
struct LayerSize {
  double size = 0;
  std::vector<std::string> names = {};
};

/// The largest layer of a model: of its own tensors, modules without children, and modules of a class in
/// `no_split_module_classes`. Classes match in full or by their last component, with or without Impl.
LayerSize get_max_layer_size(const torch::nn::Module& model, const ModuleSizes& sizes,
                             const std::vector<std::string>& no_split_module_classes = {});

}  // namespace accelerate
