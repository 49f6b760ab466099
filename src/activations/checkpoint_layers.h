#pragma once

#include <accelerate/activations/activation_checkpoint.h>

#include <string>
#include <vector>

namespace accelerate::detail {

/// Every child of a torch::nn::Sequential, in `module` or anywhere below it, whose class is one of `classes` (see names_class) is
/// called through `checkpoint` from now on. Its forward keeps its signature, and names of modules and parameters do not change;
/// clones are checkpointed too. Only `at<T>` and `get<T>` of such a child no longer know its type: `ptr(i)` does. Children that
/// are checkpointed already stay as they are. Nothing is changed when it throws: UsageError for a class that no module has, and
/// for one that only modules have which the model calls itself.
void checkpoint_layers(torch::nn::Module& module, const std::vector<std::string>& classes, const CheckpointOptions& options = {});

}  // namespace accelerate::detail
