#include <accelerate/big_model/module_sizes.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>

#include "big_model/module_tensors.h"
#include "big_model/module_tree.h"

namespace accelerate {

using namespace detail;
namespace {

struct SmallDtype {
  c10::ScalarType dtype;
  int bits;
};
/// Those that sizes count in bits. LibTorch stores each of their elements in a byte of its own, loaders of quantized weights do
/// not.
constexpr std::array<SmallDtype, 15> kSmallDtypes = {{{c10::ScalarType::Bool, 1},
                                                      {c10::ScalarType::Int1, 1},
                                                      {c10::ScalarType::Int2, 2},
                                                      {c10::ScalarType::Int3, 3},
                                                      {c10::ScalarType::Int4, 4},
                                                      {c10::ScalarType::Int5, 5},
                                                      {c10::ScalarType::Int6, 6},
                                                      {c10::ScalarType::Int7, 7},
                                                      {c10::ScalarType::UInt1, 1},
                                                      {c10::ScalarType::UInt2, 2},
                                                      {c10::ScalarType::UInt3, 3},
                                                      {c10::ScalarType::UInt4, 4},
                                                      {c10::ScalarType::UInt5, 5},
                                                      {c10::ScalarType::UInt6, 6},
                                                      {c10::ScalarType::UInt7, 7}}};

const int* bits_of_small(c10::ScalarType dtype) {
  const auto* found = std::find_if(kSmallDtypes.begin(), kSmallDtypes.end(), [&](const auto& one) { return one.dtype == dtype; });
  return found == kSmallDtypes.end() ? nullptr : &found->bits;
}

/// Integers and bools are never converted when they are loaded.
bool keeps_its_dtype(c10::ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/true) || bits_of_small(dtype) != nullptr;
}

double element_size(const NamedTensor& named, const ModuleSizeOptions& options) {
  const auto special = options.special_dtypes.find(named.name);
  if (special != options.special_dtypes.end()) return dtype_byte_size(special->second);
  const double own = dtype_byte_size(named.tensor.scalar_type());
  return options.dtype && !keeps_its_dtype(named.tensor.scalar_type()) ? std::min(dtype_byte_size(*options.dtype), own) : own;
}

void add_to_all_prefixes(const std::string& name, double bytes, ModuleSizes& sizes) {
  sizes[""] += bytes;
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) sizes[name.substr(0, dot)] += bytes;
  sizes[name] += bytes;
}

}  // namespace

double dtype_byte_size(c10::ScalarType dtype) {
  const int* bits = bits_of_small(dtype);
  return bits != nullptr ? *bits / 8.0 : static_cast<double>(c10::elementSize(dtype));
}

ModuleSizes compute_module_sizes(const torch::nn::Module& model, const ModuleSizeOptions& options) {
  ModuleSizes sizes;
  const auto add = [&](const std::vector<NamedTensor>& tensors) {
    for (const auto& named : tensors) {
      add_to_all_prefixes(named.name, static_cast<double>(named.tensor.numel()) * element_size(named, options), sizes);
    }
  };
  if (!options.buffers_only) add(each_once(all_parameters(model)));
  add(each_once(all_buffers(model)));
  return sizes;
}

double compute_module_total_buffer_size(const torch::nn::Module& model, const ModuleSizeOptions& options) {
  ModuleSizeOptions buffers = options;
  buffers.buffers_only = true;
  const ModuleSizes sizes = compute_module_sizes(model, buffers);
  const double* total = sizes.find("");
  return total == nullptr ? 0 : *total;
}

LayerSize get_max_layer_size(const torch::nn::Module& model, const ModuleSizes& sizes,
                             const std::vector<std::string>& no_split_module_classes) {
  const ModulePart whole = module_parts(model, sizes, {}, no_split_module_classes);
  return largest_layer(parts_in_order(whole));
}

}  // namespace accelerate
