#pragma once

#include <accelerate/checkpoint/tensor_dict.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>

#include "bert.h"
#include "causal_lm.h"

namespace models {

struct LoadModelOptions {
  /// The dtype to compute in; unset: that of config.json.
  std::optional<c10::ScalarType> dtype = {};
  c10::Device device = c10::kCPU;
};

/// A GPT-2, Llama or Mixtral with weights that are still to be loaded. accelerate::UsageError for a config of another family.
std::shared_ptr<CausalLM> make_causal_lm(const ModelConfig& config);

/// What our `module` calls the weight that a checkpoint of this config calls `given`: base models lack the prefix of the whole
/// model, older versions had other names. Nothing for what a module computes by itself or has no use for.
std::optional<std::string> name_in_module(const torch::nn::Module& module, const ModelConfig& config, const std::string& given);

/// The weights of a checkpoint under the names that they have in `module`; fused experts are taken apart. Nothing is copied.
accelerate::TensorDict weights_for(const torch::nn::Module& module, const ModelConfig& config,
                                   const accelerate::TensorDict& checkpoint);

/// Reads config.json and the weights (safetensors or .bin, one file or shards) of a folder that save_pretrained wrote. The model
/// is in eval mode. accelerate::CheckpointError names weights that are missing, left over, or of another shape.
std::shared_ptr<CausalLM> load_causal_lm(const std::string& folder, const LoadModelOptions& options = {});
/// The same for BERT: the base model, from a checkpoint of it or of a model with a head (whose weights are then left out) …
std::shared_ptr<BertModel> load_bert(const std::string& folder, const LoadModelOptions& options = {});
/// … and the model that names masked tokens.
std::shared_ptr<BertForMaskedLM> load_bert_for_masked_lm(const std::string& folder, const LoadModelOptions& options = {});

}  // namespace models
