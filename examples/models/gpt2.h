#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "causal_lm.h"
#include "layers.h"

// Classes and children have the names and the order of transformers, so that checkpoints, device maps and lists of layers that
// must not be split fit as they are.
namespace models {

class GPT2Attention : public torch::nn::Module {
 public:
  GPT2Attention(const ModelConfig& config, size_t layer);
  at::Tensor forward(const at::Tensor& x, KeyValueCache* cache);

 private:
  size_t layer_;
  int64_t heads_;
  AttentionOptions options_;
  std::shared_ptr<Conv1D> c_attn_, c_proj_;
};

class GPT2MLP : public torch::nn::Module {
 public:
  explicit GPT2MLP(const ModelConfig& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  Activation activation_;
  std::shared_ptr<Conv1D> c_fc_, c_proj_;
};

class GPT2Block : public torch::nn::Module {
 public:
  GPT2Block(const ModelConfig& config, size_t layer);
  at::Tensor forward(const at::Tensor& x, KeyValueCache* cache);

 private:
  torch::nn::LayerNorm ln_1_, ln_2_;
  std::shared_ptr<GPT2Attention> attn_;
  std::shared_ptr<GPT2MLP> mlp_;
};

class GPT2Model : public torch::nn::Module {
 public:
  explicit GPT2Model(const ModelConfig& config);
  /// Hidden states [batch, positions, width]. accelerate::UsageError when there are more positions than the model knows.
  at::Tensor forward(const at::Tensor& ids, KeyValueCache* cache);
  at::Tensor embedding_weight() const { return wte_->weight; }

 private:
  int64_t max_positions_;
  torch::nn::Embedding wte_, wpe_;
  torch::nn::ModuleList h_;
  torch::nn::LayerNorm ln_f_;
};

/// GPT-2 with the head that names the next token. A tied head has no parameter of its own: it is the weight of the embedding.
class GPT2LMHeadModel : public CausalLM {
 public:
  explicit GPT2LMHeadModel(const ModelConfig& config);
  at::Tensor forward(const at::Tensor& ids, const ForwardOptions& options = {}) override;

 private:
  std::shared_ptr<GPT2Model> transformer_;
  torch::nn::Linear lm_head_{nullptr};
};

}  // namespace models
