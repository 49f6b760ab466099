#include "gpt2.h"

#include <accelerate/core/error.h>
#include <torch/torch.h>

namespace models {
namespace {

torch::nn::LayerNormOptions gpt2_norm(const ModelConfig& config) {
  return torch::nn::LayerNormOptions({config.hidden_size}).eps(config.norm_eps);
}

}  // namespace

GPT2Attention::GPT2Attention(const ModelConfig& config, size_t layer) : layer_(layer), heads_(config.heads) {
  options_.scale = config.scale_attention ? 1 / std::sqrt(static_cast<double>(config.head_dim)) : 1;
  if (config.scale_attention_by_layer) options_.scale /= static_cast<double>(layer + 1);
  c_attn_ = register_module("c_attn", std::make_shared<Conv1D>(config.hidden_size, 3 * config.hidden_size));
  c_proj_ = register_module("c_proj", std::make_shared<Conv1D>(config.hidden_size, config.hidden_size));
}

at::Tensor GPT2Attention::forward(const at::Tensor& x, KeyValueCache* cache) {
  const auto parts = c_attn_->forward(x).chunk(3, -1);
  const auto queries = split_heads(parts[0], heads_);
  auto keys = split_heads(parts[1], heads_), values = split_heads(parts[2], heads_);
  if (cache) std::tie(keys, values) = cache->append(layer_, keys, values);
  return c_proj_->forward(merge_heads(causal_attention(queries, keys, values, options_)));
}

GPT2MLP::GPT2MLP(const ModelConfig& config) : activation_(activation_named(config.activation)) {
  c_fc_ = register_module("c_fc", std::make_shared<Conv1D>(config.hidden_size, config.intermediate_size));
  c_proj_ = register_module("c_proj", std::make_shared<Conv1D>(config.intermediate_size, config.hidden_size));
}

at::Tensor GPT2MLP::forward(const at::Tensor& x) { return c_proj_->forward(activation_(c_fc_->forward(x))); }

GPT2Block::GPT2Block(const ModelConfig& config, size_t layer) : ln_1_(gpt2_norm(config)), ln_2_(gpt2_norm(config)) {
  register_module("ln_1", ln_1_);
  attn_ = register_module("attn", std::make_shared<GPT2Attention>(config, layer));
  register_module("ln_2", ln_2_);
  mlp_ = register_module("mlp", std::make_shared<GPT2MLP>(config));
}

at::Tensor GPT2Block::forward(const at::Tensor& x, KeyValueCache* cache) {
  const auto attended = x + attn_->forward(ln_1_(x), cache);
  return attended + mlp_->forward(ln_2_(attended));
}

GPT2Model::GPT2Model(const ModelConfig& config)
    : max_positions_(config.max_positions),
      wte_(config.vocab_size, config.hidden_size),
      wpe_(config.max_positions, config.hidden_size),
      ln_f_(gpt2_norm(config)) {
  register_module("wte", wte_);
  register_module("wpe", wpe_);
  register_module("h", h_);
  for (int64_t i = 0; i < config.layers; ++i) h_->push_back(std::make_shared<GPT2Block>(config, static_cast<size_t>(i)));
  register_module("ln_f", ln_f_);
}

at::Tensor GPT2Model::forward(const at::Tensor& ids, KeyValueCache* cache) {
  const int64_t first = cache ? cache->length() : 0, last = first + ids.size(1);
  if (last > max_positions_) {
    throw accelerate::UsageError("The text has " + std::to_string(last) + " tokens, but this model supports only " +
                                 std::to_string(max_positions_) + " positions. Give a shorter prompt or fewer new tokens.");
  }
  auto x = wte_(ids) + wpe_(at::arange(first, last, ids.options()));
  for (const auto& block : *h_) x = block->as<GPT2Block>()->forward(x, cache);
  if (cache) cache->advance(ids.size(1));
  return ln_f_(x);
}

GPT2LMHeadModel::GPT2LMHeadModel(const ModelConfig& config) : CausalLM(config) {
  transformer_ = register_module("transformer", std::make_shared<GPT2Model>(config));
  if (config.tied) return;
  const auto head = torch::nn::LinearOptions(config.hidden_size, config.vocab_size).bias(false);
  lm_head_ = register_module("lm_head", torch::nn::Linear(head));
}

at::Tensor GPT2LMHeadModel::forward(const at::Tensor& ids, const ForwardOptions& options) {
  auto hidden = transformer_->forward(ids, options.cache);
  const auto weight = lm_head_ ? lm_head_->weight : transformer_->embedding_weight();
  if (options.labels.defined()) return next_token_loss(hidden, weight, options.labels);
  if (options.last_only) hidden = hidden.narrow(1, hidden.size(1) - 1, 1);
  return tied_logits(hidden, weight);
}

}  // namespace models
