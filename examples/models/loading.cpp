#include "loading.h"

#include <accelerate/checkpoint/module_state.h>
#include <accelerate/checkpoint/weights.h>
#include <accelerate/core/error.h>
#include <torch/torch.h>

#include "gpt2.h"
#include "mixtral.h"

namespace models {
namespace {

using accelerate::TensorDict;

/// What the checkpoints of a family call things that our modules call otherwise.
struct Family {
  const char* model_type;
  /// The base model inside the whole one; checkpoints of base models lack it.
  const char* prefix;
  /// Parts of names, and what stands there instead.
  std::vector<std::pair<std::string, std::string>> replaced;
  /// Ends of names that no module has: masks and frequencies of older versions, computed here.
  std::vector<std::string> computed;
  /// Weights of a tied head, which is the embedding here.
  std::vector<std::string> tied;
  /// Heads that a base model passes over; null where there is no base model to be loaded by itself.
  const char* head_prefix = nullptr;
};

const Family& family_of(const ModelConfig& config) {
  static const std::vector<Family> kFamilies = {
      {"gpt2", "transformer.", {}, {".attn.bias", ".attn.masked_bias"}, {"lm_head.weight"}, nullptr},
      {"llama", "model.", {}, {".rotary_emb.inv_freq"}, {"lm_head.weight"}, nullptr},
      {"mixtral", "model.", {{".mlp.", ".block_sparse_moe."}}, {".rotary_emb.inv_freq"}, {"lm_head.weight"}, nullptr},
      {"bert",
       "bert.",
       {{"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}},
       // The head for pairs of sentences is none of ours.
       {"embeddings.position_ids", "cls.seq_relationship.weight", "cls.seq_relationship.bias"},
       {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"},
       "cls."},
  };
  for (const auto& family : kFamilies) {
    if (config.model_type == family.model_type) return family;
  }
  throw accelerate::UsageError("There is no model of the type '" + config.model_type + "' here.");
}

bool ends_with_any(const std::string& name, const std::vector<std::string>& ends) {
  return std::any_of(ends.begin(), ends.end(), [&](const auto& end) { return name.ends_with(end); });
}

std::string with_replaced(std::string name, const Family& family) {
  for (const auto& [from, to] : family.replaced) {
    const auto at = name.find(from);
    if (at != std::string::npos) name.replace(at, from.size(), to);
  }
  return name;
}

/// Experts in one tensor, as transformers 5 holds them in memory and state_dict() gives them: gate_up_proj is [experts, w1 above
/// w3, width], down_proj is w2. True when `name` was such a tensor.
bool take_experts_apart(const std::string& name, const at::Tensor& tensor, TensorDict& result) {
  const bool gate_up = name.ends_with(".experts.gate_up_proj"), down = name.ends_with(".experts.down_proj");
  if (!gate_up && !down) return false;
  if (tensor.dim() != 3) {
    throw accelerate::CheckpointError(name + " has " + std::to_string(tensor.dim()) +
                                      " dimensions; experts, rows and columns are expected.");
  }
  const std::string before = name.substr(0, name.rfind('.') + 1);
  for (int64_t expert = 0; expert < tensor.size(0); ++expert) {
    const std::string prefix = before + std::to_string(expert) + ".";
    if (down) {
      result[prefix + "w2.weight"] = tensor[expert];
    } else {
      const auto parts = tensor[expert].chunk(2, 0);
      result[prefix + "w1.weight"] = parts[0];
      result[prefix + "w3.weight"] = parts[1];
    }
  }
  return true;
}

c10::ScalarType dtype_named(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  throw accelerate::ConfigError("config.json asks for the dtype '" + name + "'; float32, bfloat16 and float16 are supported.");
}

void load_into(torch::nn::Module& module, const ModelConfig& config, const std::string& folder, const LoadModelOptions& options) {
  module.to(options.dtype.value_or(dtype_named(config.dtype)));
  accelerate::load_state_dict(module, weights_for(module, config, accelerate::load_weights(folder)));
  module.to(options.device);
  module.eval();
}

ModelConfig bert_config(const std::string& folder) {
  const ModelConfig config = read_config(folder);
  if (config.model_type == "bert") return config;
  throw accelerate::UsageError(folder + " holds a model of the type '" + config.model_type + "', not a BERT.");
}

}  // namespace

std::shared_ptr<CausalLM> make_causal_lm(const ModelConfig& config) {
  if (config.model_type == "gpt2") return std::make_shared<GPT2LMHeadModel>(config);
  if (config.model_type == "llama") return std::make_shared<LlamaForCausalLM>(config);
  if (config.model_type == "mixtral") return std::make_shared<MixtralForCausalLM>(config);
  throw accelerate::UsageError("A model of the type '" + config.model_type +
                               "' does not name the next token; gpt2, llama and mixtral do.");
}

std::optional<std::string> name_in_module(const torch::nn::Module& module, const ModelConfig& config, const std::string& given) {
  const Family& family = family_of(config);
  const std::string prefix = family.prefix;
  std::string name = with_replaced(given, family);
  if (ends_with_any(name, family.computed) || (config.tied && ends_with_any(name, family.tied))) return std::nullopt;
  const auto children = module.named_children();
  const auto is_child = [&](const std::string& of) { return children.contains(of.substr(0, of.find('.'))); };
  if (!is_child(prefix)) {  // the base model alone
    if (name.starts_with(prefix)) name = name.substr(prefix.size());
    if (family.head_prefix && name.starts_with(family.head_prefix)) return std::nullopt;
    return name;
  }
  if (!is_child(name)) name = prefix + name;
  // Checkpoints of whole models have it, and naming masked tokens does not use it.
  if (name.starts_with("bert.pooler.")) return std::nullopt;
  return name;
}

TensorDict weights_for(const torch::nn::Module& module, const ModelConfig& config, const TensorDict& checkpoint) {
  TensorDict result;
  for (const auto& [given, tensor] : checkpoint) {
    const auto name = name_in_module(module, config, given);
    if (name && !take_experts_apart(*name, tensor, result)) result[*name] = tensor;
  }
  return result;
}

std::shared_ptr<CausalLM> load_causal_lm(const std::string& folder, const LoadModelOptions& options) {
  const ModelConfig config = read_config(folder);
  auto model = make_causal_lm(config);
  load_into(*model, config, folder, options);
  return model;
}

std::shared_ptr<BertModel> load_bert(const std::string& folder, const LoadModelOptions& options) {
  const ModelConfig config = bert_config(folder);
  // A checkpoint for masked tokens has no pooler.
  auto model = std::make_shared<BertModel>(config, config.architecture != "BertForMaskedLM");
  load_into(*model, config, folder, options);
  return model;
}

std::shared_ptr<BertForMaskedLM> load_bert_for_masked_lm(const std::string& folder, const LoadModelOptions& options) {
  const ModelConfig config = bert_config(folder);
  auto model = std::make_shared<BertForMaskedLM>(config);
  load_into(*model, config, folder, options);
  return model;
}

}  // namespace models
