#pragma once

#include <torch/nn/module.h>

#include "config.h"
#include "key_value_cache.h"

namespace models {

struct ForwardOptions {
  /// The positions before the given ones; the given ones are added to it.
  KeyValueCache* cache = nullptr;
  /// Logits of the last position alone: what a generation needs of a long prompt.
  bool last_only = false;
  /// The tokens [batch, positions], each of which the position before it is to name; -100: none is. With them a pass returns the
  /// mean loss instead of logits.
  at::Tensor labels = {};
};

/// A model that says which token comes next. It is written for inference: there is no dropout.
class CausalLM : public torch::nn::Module {
 public:
  explicit CausalLM(ModelConfig config) : config_(std::move(config)) {}

  /// The logits [batch, positions, vocabulary] of token ids [batch, positions], or the loss.
  virtual at::Tensor forward(const at::Tensor& ids, const ForwardOptions& options = {}) = 0;

  const ModelConfig& config() const { return config_; }

 private:
  ModelConfig config_;
};

}  // namespace models
