#include "llama.h"

#include <torch/torch.h>

namespace models {
namespace {

torch::nn::Linear linear(int64_t in, int64_t out, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

}  // namespace

LlamaAttention::LlamaAttention(const ModelConfig& config, size_t layer)
    : layer_(layer), heads_(config.heads), kv_heads_(config.kv_heads), options_{.window = config.sliding_window} {
  const int64_t width = config.heads * config.head_dim, kv_width = config.kv_heads * config.head_dim;
  q_proj_ = register_module("q_proj", linear(config.hidden_size, width, config.attention_bias));
  k_proj_ = register_module("k_proj", linear(config.hidden_size, kv_width, config.attention_bias));
  v_proj_ = register_module("v_proj", linear(config.hidden_size, kv_width, config.attention_bias));
  o_proj_ = register_module("o_proj", linear(width, config.hidden_size, config.attention_bias));
}

at::Tensor LlamaAttention::forward(const at::Tensor& x, const Rotation& rotation, KeyValueCache* cache) {
  const auto queries = rotated(split_heads(q_proj_(x), heads_), rotation);
  auto keys = rotated(split_heads(k_proj_(x), kv_heads_), rotation);
  auto values = split_heads(v_proj_(x), kv_heads_);
  if (cache) std::tie(keys, values) = cache->append(layer_, keys, values);
  return o_proj_(merge_heads(causal_attention(queries, keys, values, options_)));
}

LlamaMLP::LlamaMLP(const ModelConfig& config) : activation_(activation_named(config.activation)) {
  gate_proj_ = register_module("gate_proj", linear(config.hidden_size, config.intermediate_size, config.mlp_bias));
  up_proj_ = register_module("up_proj", linear(config.hidden_size, config.intermediate_size, config.mlp_bias));
  down_proj_ = register_module("down_proj", linear(config.intermediate_size, config.hidden_size, config.mlp_bias));
}

at::Tensor LlamaMLP::forward(const at::Tensor& x) { return down_proj_(activation_(gate_proj_(x)) * up_proj_(x)); }

DecoderLayer::DecoderLayer(const ModelConfig& config, size_t layer, const std::string& name,
                           std::shared_ptr<FeedForward> feed_forward)
    : feed_forward_(std::move(feed_forward)) {
  self_attn_ = register_module("self_attn", std::make_shared<LlamaAttention>(config, layer));
  register_module(name, feed_forward_);
  input_layernorm_ = register_module("input_layernorm", std::make_shared<RMSNorm>(config.hidden_size, config.norm_eps));
  post_attention_layernorm_ =
      register_module("post_attention_layernorm", std::make_shared<RMSNorm>(config.hidden_size, config.norm_eps));
}

at::Tensor DecoderLayer::forward(const at::Tensor& x, const Rotation& rotation, KeyValueCache* cache) {
  const auto attended = x + self_attn_->forward(input_layernorm_->forward(x), rotation, cache);
  return attended + feed_forward_->forward(post_attention_layernorm_->forward(attended));
}

LlamaModel::LlamaModel(const ModelConfig& config, const LayerMaker& make_layer)
    : rope_(config.rope), head_dim_(config.head_dim), embed_tokens_(config.vocab_size, config.hidden_size) {
  register_module("embed_tokens", embed_tokens_);
  register_module("layers", layers_);
  for (int64_t i = 0; i < config.layers; ++i) layers_->push_back(make_layer(config, static_cast<size_t>(i)));
  norm_ = register_module("norm", std::make_shared<RMSNorm>(config.hidden_size, config.norm_eps));
}

at::Tensor LlamaModel::forward(const at::Tensor& ids, KeyValueCache* cache) {
  auto x = embed_tokens_(ids);
  const auto rotation = rotation_of(rope_, head_dim_, cache ? cache->length() : 0, ids.size(1), x);
  for (const auto& layer : *layers_) x = layer->as<DecoderLayer>()->forward(x, rotation, cache);
  if (cache) cache->advance(ids.size(1));
  return norm_->forward(x);
}

LlamaForCausalLM::LlamaForCausalLM(const ModelConfig& config)
    : LlamaForCausalLM(config,
                       [](const ModelConfig& of, size_t layer) { return std::make_shared<LlamaDecoderLayer>(of, layer); }) {}

LlamaForCausalLM::LlamaForCausalLM(const ModelConfig& config, const LayerMaker& make_layer) : CausalLM(config) {
  model_ = register_module("model", std::make_shared<LlamaModel>(config, make_layer));
  if (!config.tied) lm_head_ = register_module("lm_head", linear(config.hidden_size, config.vocab_size, false));
}

at::Tensor LlamaForCausalLM::forward(const at::Tensor& ids, const ForwardOptions& options) {
  auto hidden = model_->forward(ids, options.cache);
  const auto weight = lm_head_ ? lm_head_->weight : model_->embedding_weight();
  if (options.labels.defined()) return next_token_loss(hidden, weight, options.labels);
  if (options.last_only) hidden = hidden.narrow(1, hidden.size(1) - 1, 1);
  return at::linear(hidden, weight);
}

}  // namespace models
