#include "bert.h"

#include <accelerate/core/error.h>
#include <torch/torch.h>

namespace models {
namespace {

torch::nn::LayerNormOptions bert_norm(const ModelConfig& config) {
  return torch::nn::LayerNormOptions({config.hidden_size}).eps(config.norm_eps);
}

/// A module that only gives its child another step in the path of names.
class Named : public torch::nn::Module {
 public:
  Named(const std::string& name, std::shared_ptr<torch::nn::Module> child) { register_module(name, std::move(child)); }
};

}  // namespace

BertEmbeddings::BertEmbeddings(const ModelConfig& config)
    : max_positions_(config.max_positions),
      word_embeddings_(config.vocab_size, config.hidden_size),
      position_embeddings_(config.max_positions, config.hidden_size),
      token_type_embeddings_(config.type_vocab_size, config.hidden_size),
      layer_norm_(bert_norm(config)) {
  register_module("word_embeddings", word_embeddings_);
  register_module("position_embeddings", position_embeddings_);
  register_module("token_type_embeddings", token_type_embeddings_);
  register_module("LayerNorm", layer_norm_);
}

at::Tensor BertEmbeddings::forward(const at::Tensor& ids, const at::Tensor& token_types) {
  if (ids.size(1) > max_positions_) {
    throw accelerate::UsageError("The text has " + std::to_string(ids.size(1)) + " tokens, but this model supports only " +
                                 std::to_string(max_positions_) + " positions. Cut the text.");
  }
  const auto positions = position_embeddings_(at::arange(ids.size(1), ids.options()));
  return layer_norm_(word_embeddings_(ids) + token_type_embeddings_(token_types) + positions);
}

BertSelfAttention::BertSelfAttention(const ModelConfig& config)
    : heads_(config.heads),
      query_(config.hidden_size, config.hidden_size),
      key_(config.hidden_size, config.hidden_size),
      value_(config.hidden_size, config.hidden_size) {
  register_module("query", query_);
  register_module("key", key_);
  register_module("value", value_);
}

at::Tensor BertSelfAttention::forward(const at::Tensor& x, const std::optional<at::Tensor>& mask) {
  const auto of = [&](torch::nn::Linear& part) { return split_heads(part(x), heads_); };
  return merge_heads(at::scaled_dot_product_attention(of(query_), of(key_), of(value_), mask));
}

BertOutput::BertOutput(int64_t in, const ModelConfig& config) : dense_(in, config.hidden_size), layer_norm_(bert_norm(config)) {
  register_module("dense", dense_);
  register_module("LayerNorm", layer_norm_);
}

at::Tensor BertOutput::forward(const at::Tensor& x, const at::Tensor& residual) { return layer_norm_(dense_(x) + residual); }

BertAttention::BertAttention(const ModelConfig& config) {
  self_ = register_module("self", std::make_shared<BertSelfAttention>(config));
  output_ = register_module("output", std::make_shared<BertOutput>(config.hidden_size, config));
}

at::Tensor BertAttention::forward(const at::Tensor& x, const std::optional<at::Tensor>& mask) {
  return output_->forward(self_->forward(x, mask), x);
}

BertDense::BertDense(int64_t in, int64_t out, const std::string& activation, std::optional<double> norm_eps)
    : activation_(activation_named(activation)), dense_(in, out) {
  register_module("dense", dense_);
  if (!norm_eps) return;
  const auto norm = torch::nn::LayerNormOptions({out}).eps(*norm_eps);
  layer_norm_ = register_module("LayerNorm", torch::nn::LayerNorm(norm));
}

at::Tensor BertDense::forward(const at::Tensor& x) {
  const auto result = activation_(dense_(x));
  return layer_norm_ ? layer_norm_(result) : result;
}

BertLayer::BertLayer(const ModelConfig& config) {
  attention_ = register_module("attention", std::make_shared<BertAttention>(config));
  intermediate_ = register_module("intermediate",
                                  std::make_shared<BertDense>(config.hidden_size, config.intermediate_size, config.activation));
  output_ = register_module("output", std::make_shared<BertOutput>(config.intermediate_size, config));
}

at::Tensor BertLayer::forward(const at::Tensor& x, const std::optional<at::Tensor>& mask) {
  const auto attended = attention_->forward(x, mask);
  return output_->forward(intermediate_->forward(attended), attended);
}

BertEncoder::BertEncoder(const ModelConfig& config) {
  register_module("layer", layer_);
  for (int64_t i = 0; i < config.layers; ++i) layer_->push_back(std::make_shared<BertLayer>(config));
}

at::Tensor BertEncoder::forward(at::Tensor x, const std::optional<at::Tensor>& mask) {
  for (const auto& layer : *layer_) x = layer->as<BertLayer>()->forward(x, mask);
  return x;
}

BertModel::BertModel(const ModelConfig& config, bool with_pooler) {
  embeddings_ = register_module("embeddings", std::make_shared<BertEmbeddings>(config));
  encoder_ = register_module("encoder", std::make_shared<BertEncoder>(config));
  if (with_pooler) {
    pooler_ = register_module("pooler", std::make_shared<BertDense>(config.hidden_size, config.hidden_size, "tanh"));
  }
}

BertResult BertModel::forward(const BertInputs& inputs) {
  const auto types = inputs.token_types.defined() ? inputs.token_types : at::zeros_like(inputs.ids);
  std::optional<at::Tensor> mask;
  if (inputs.attention_mask.defined()) mask = inputs.attention_mask.to(at::kBool).unsqueeze(1).unsqueeze(1);
  const auto hidden = encoder_->forward(embeddings_->forward(inputs.ids, types), mask);
  return {hidden, pooler_ ? pooler_->forward(hidden.select(1, 0)) : at::Tensor()};
}

BertPredictions::BertPredictions(const ModelConfig& config) {
  bias_ = register_parameter("bias", torch::zeros({config.vocab_size}));
  transform_ = register_module(
      "transform", std::make_shared<BertDense>(config.hidden_size, config.hidden_size, config.activation, config.norm_eps));
  if (config.tied) return;
  decoder_ = register_module("decoder", torch::nn::Linear(config.hidden_size, config.vocab_size));
}

at::Tensor BertPredictions::forward(const at::Tensor& hidden, const at::Tensor& word_weight) {
  const auto transformed = transform_->forward(hidden);
  return decoder_ ? decoder_(transformed) : tied_logits(transformed, word_weight, bias_);
}

BertForMaskedLM::BertForMaskedLM(const ModelConfig& config) {
  bert_ = register_module("bert", std::make_shared<BertModel>(config, /*with_pooler=*/false));
  predictions_ = std::make_shared<BertPredictions>(config);
  register_module("cls", std::make_shared<Named>("predictions", predictions_));
}

at::Tensor BertForMaskedLM::forward(const BertInputs& inputs) {
  return predictions_->forward(bert_->forward(inputs).last_hidden_state, bert_->word_weight());
}

}  // namespace models
