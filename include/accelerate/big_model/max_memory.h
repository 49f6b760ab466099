#pragma once

#include <accelerate/big_model/module_sizes.h>
#include <accelerate/big_model/place.h>
#include <accelerate/core/byte_size.h>
#include <accelerate/core/ordered_map.h>

namespace accelerate {

/// How much each place may hold: `{{0, "10GiB"}, {torch::kCPU, "30GiB"}}`. Empty: not given, what the host has.
class MaxMemory : public OrderedMap<Place, ByteSize> {
 public:
  using OrderedMap::OrderedMap;
};

/// What was given, in the order in which places are filled: accelerators by index, mps, cpu, disk. When it is empty: the free
/// memory of every accelerator and the available memory of the host, as they are now. UsageError for places that hold no
/// weights (meta); a warning names accelerators that this host lacks.
MaxMemory get_max_memory(const MaxMemory& max_memory = {});

struct BalancedMemoryOptions {
  MaxMemory max_memory = {};
  /// Classes of modules that are never spread over several places.
  std::vector<std::string> no_split_module_classes = {};
  std::optional<c10::ScalarType> dtype = std::nullopt;
  SpecialDtypes special_dtypes = {};
  /// Leave accelerator 0 as free as possible.
  bool low_zero = false;
};

/// Limits that spread a model evenly over the accelerators: each gets its share and room for a layer, the last keeps all it may
/// hold. Of a single accelerator 90 % are used when max_memory was not given.
MaxMemory get_balanced_memory(const torch::nn::Module& model, const BalancedMemoryOptions& options = {});

}  // namespace accelerate
