#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <functional>

#include "causal_lm.h"
#include "layers.h"

namespace models {

class LlamaAttention : public torch::nn::Module {
 public:
  LlamaAttention(const ModelConfig& config, size_t layer);
  at::Tensor forward(const at::Tensor& x, const Rotation& rotation, KeyValueCache* cache);

 private:
  size_t layer_;
  int64_t heads_, kv_heads_;
  AttentionOptions options_;
  torch::nn::Linear q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, o_proj_{nullptr};
};

/// The half of a layer in which its family differs from others: what each position does by itself.
class FeedForward : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

class LlamaMLP : public FeedForward {
 public:
  explicit LlamaMLP(const ModelConfig& config);
  at::Tensor forward(const at::Tensor& x) override;

 private:
  Activation activation_;
  torch::nn::Linear gate_proj_{nullptr}, up_proj_{nullptr}, down_proj_{nullptr};
};

/// Attention with rotary positions, then a feed-forward part that is registered under the name its family has for it.
class DecoderLayer : public torch::nn::Module {
 public:
  DecoderLayer(const ModelConfig& config, size_t layer, const std::string& name, std::shared_ptr<FeedForward> feed_forward);
  at::Tensor forward(const at::Tensor& x, const Rotation& rotation, KeyValueCache* cache);

 private:
  std::shared_ptr<LlamaAttention> self_attn_;
  std::shared_ptr<FeedForward> feed_forward_;
  std::shared_ptr<RMSNorm> input_layernorm_, post_attention_layernorm_;
};

class LlamaDecoderLayer : public DecoderLayer {
 public:
  LlamaDecoderLayer(const ModelConfig& config, size_t layer)
      : DecoderLayer(config, layer, "mlp", std::make_shared<LlamaMLP>(config)) {}
};

/// Makes layer number so and so.
using LayerMaker = std::function<std::shared_ptr<DecoderLayer>(const ModelConfig& config, size_t layer)>;

class LlamaModel : public torch::nn::Module {
 public:
  LlamaModel(const ModelConfig& config, const LayerMaker& make_layer);
  /// Hidden states [batch, positions, width].
  at::Tensor forward(const at::Tensor& ids, KeyValueCache* cache);
  at::Tensor embedding_weight() const { return embed_tokens_->weight; }

 private:
  RopeConfig rope_;
  int64_t head_dim_;
  torch::nn::Embedding embed_tokens_;
  torch::nn::ModuleList layers_;
  std::shared_ptr<RMSNorm> norm_;
};

/// Llama with the head that names the next token. A tied head has no parameter of its own: it is the weight of the embedding.
class LlamaForCausalLM : public CausalLM {
 public:
  explicit LlamaForCausalLM(const ModelConfig& config);
  at::Tensor forward(const at::Tensor& ids, const ForwardOptions& options = {}) override;

 protected:
  /// A family with other layers.
  LlamaForCausalLM(const ModelConfig& config, const LayerMaker& make_layer);

 private:
  std::shared_ptr<LlamaModel> model_;
  torch::nn::Linear lm_head_{nullptr};
};

}  // namespace models
