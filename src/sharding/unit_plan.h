#pragma once

#include <ATen/core/TensorBody.h>
#include <accelerate/sharding/fsdp_options.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

struct NamedWeight {
  std::string name;
  at::Tensor parameter;
};

/// Parameters that are gathered and resharded together: of one dtype, each once.
struct UnitPlan {
  std::string name;
  std::vector<NamedWeight> weights;
};

struct ShardingPlan {
  std::vector<UnitPlan> units;
  /// Parameters of ignored modules, which each rank holds as a whole.
  std::vector<NamedWeight> whole;
};

/// Divides the parameters of a module into units, as the wrap policy of the options says. Units are in the order of the module's
/// parameters. UsageError for a class of transformer_layer_classes or an ignored module that the module does not have.
ShardingPlan plan_units(const torch::nn::Module& module, const FsdpOptions& options);

}  // namespace accelerate::detail
