#pragma once

#include "llama.h"

namespace models {

/// One expert: w2(activation(w1 x) * w3 x).
class MixtralExpert : public torch::nn::Module {
 public:
  explicit MixtralExpert(const ModelConfig& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  Activation activation_;
  torch::nn::Linear w1_, w2_, w3_;
};

/// A router sends each token to the experts it scores highest, and their answers are weighed by the scores. Experts are modules
/// of their own rather than one large tensor: one that no token goes to is not touched, and so need not be in memory.
class MixtralSparseMoeBlock : public FeedForward {
 public:
  explicit MixtralSparseMoeBlock(const ModelConfig& config);
  at::Tensor forward(const at::Tensor& x) override;

 private:
  int64_t experts_per_token_;
  torch::nn::Linear gate_;
  torch::nn::ModuleList experts_;
};

class MixtralDecoderLayer : public DecoderLayer {
 public:
  MixtralDecoderLayer(const ModelConfig& config, size_t layer)
      : DecoderLayer(config, layer, "block_sparse_moe", std::make_shared<MixtralSparseMoeBlock>(config)) {}
};

/// A Llama whose feed-forward parts are mixtures of experts.
class MixtralForCausalLM : public LlamaForCausalLM {
 public:
  explicit MixtralForCausalLM(const ModelConfig& config);
};

}  // namespace models
