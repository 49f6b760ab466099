#include "mixtral.h"

#include <torch/torch.h>

namespace models {
namespace {

torch::nn::LinearOptions without_bias(int64_t in, int64_t out) { return torch::nn::LinearOptions(in, out).bias(false); }

}  // namespace

MixtralExpert::MixtralExpert(const ModelConfig& config)
    : activation_(activation_named(config.activation)),
      w1_(without_bias(config.hidden_size, config.intermediate_size)),
      w2_(without_bias(config.intermediate_size, config.hidden_size)),
      w3_(without_bias(config.hidden_size, config.intermediate_size)) {
  register_module("w1", w1_);
  register_module("w2", w2_);
  register_module("w3", w3_);
}

at::Tensor MixtralExpert::forward(const at::Tensor& x) { return w2_(activation_(w1_(x)) * w3_(x)); }

MixtralSparseMoeBlock::MixtralSparseMoeBlock(const ModelConfig& config)
    : experts_per_token_(config.experts_per_token), gate_(without_bias(config.hidden_size, config.experts)) {
  register_module("gate", gate_);
  register_module("experts", experts_);
  for (int64_t i = 0; i < config.experts; ++i) experts_->push_back(std::make_shared<MixtralExpert>(config));
}

at::Tensor MixtralSparseMoeBlock::forward(const at::Tensor& x) {
  const auto tokens = x.reshape({-1, x.size(-1)});
  const auto [scores, chosen] = at::softmax(gate_(tokens), -1, at::kFloat).topk(experts_per_token_, -1);
  const auto weights = scores / scores.sum(-1, true);
  auto result = at::zeros_like(tokens);
  for (size_t expert = 0; expert < experts_->size(); ++expert) {
    const auto hits = at::nonzero(chosen == static_cast<int64_t>(expert));  // pairs of token and rank among its choices
    if (hits.size(0) == 0) continue;
    const auto rows = hits.select(1, 0);
    const auto weight = weights.index({rows, hits.select(1, 1)}).unsqueeze(1);
    const auto answer = experts_->ptr<MixtralExpert>(expert)->forward(tokens.index_select(0, rows));
    result = result.index_add(0, rows, (answer * weight).to(tokens.scalar_type()));
  }
  return result.view(x.sizes());
}

MixtralForCausalLM::MixtralForCausalLM(const ModelConfig& config)
    : LlamaForCausalLM(config,
                       [](const ModelConfig& of, size_t layer) { return std::make_shared<MixtralDecoderLayer>(of, layer); }) {}

}  // namespace models
