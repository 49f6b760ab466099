#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "layers.h"

namespace models {

class BertEmbeddings : public torch::nn::Module {
 public:
  explicit BertEmbeddings(const ModelConfig& config);
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& token_types);
  at::Tensor word_weight() const { return word_embeddings_->weight; }

 private:
  int64_t max_positions_;
  torch::nn::Embedding word_embeddings_, position_embeddings_, token_type_embeddings_;
  torch::nn::LayerNorm layer_norm_;
};

class BertSelfAttention : public torch::nn::Module {
 public:
  explicit BertSelfAttention(const ModelConfig& config);
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask);

 private:
  int64_t heads_;
  torch::nn::Linear query_, key_, value_;
};

/// A linear layer whose result is added to the input of the part it ends, and normalised.
class BertOutput : public torch::nn::Module {
 public:
  BertOutput(int64_t in, const ModelConfig& config);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual);

 private:
  torch::nn::Linear dense_;
  torch::nn::LayerNorm layer_norm_;
};

class BertAttention : public torch::nn::Module {
 public:
  explicit BertAttention(const ModelConfig& config);
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask);

 private:
  std::shared_ptr<BertSelfAttention> self_;
  std::shared_ptr<BertOutput> output_;
};

/// A linear layer and its activation; with a norm behind it, it is also the transform of the head.
class BertDense : public torch::nn::Module {
 public:
  BertDense(int64_t in, int64_t out, const std::string& activation, std::optional<double> norm_eps = {});
  at::Tensor forward(const at::Tensor& x);

 private:
  Activation activation_;
  torch::nn::Linear dense_;
  torch::nn::LayerNorm layer_norm_{nullptr};
};

class BertLayer : public torch::nn::Module {
 public:
  explicit BertLayer(const ModelConfig& config);
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask);

 private:
  std::shared_ptr<BertAttention> attention_;
  std::shared_ptr<BertDense> intermediate_;
  std::shared_ptr<BertOutput> output_;
};

class BertEncoder : public torch::nn::Module {
 public:
  explicit BertEncoder(const ModelConfig& config);
  at::Tensor forward(at::Tensor x, const std::optional<at::Tensor>& mask);

 private:
  torch::nn::ModuleList layer_;
};

struct BertInputs {
  /// Token ids [batch, positions].
  at::Tensor ids;
  /// 1 for tokens and 0 for what fills a row up, [batch, positions]; undefined: all are tokens.
  at::Tensor attention_mask = {};
  /// Which of two texts a token is of, [batch, positions]; undefined: all are of the first.
  at::Tensor token_types = {};
};

struct BertResult {
  /// [batch, positions, width].
  at::Tensor last_hidden_state;
  /// [batch, width]; undefined for a model without a pooler.
  at::Tensor pooler_output;
};

/// BERT without a head.
class BertModel : public torch::nn::Module {
 public:
  explicit BertModel(const ModelConfig& config, bool with_pooler = true);
  BertResult forward(const BertInputs& inputs);
  at::Tensor word_weight() const { return embeddings_->word_weight(); }

 private:
  std::shared_ptr<BertEmbeddings> embeddings_;
  std::shared_ptr<BertEncoder> encoder_;
  std::shared_ptr<BertDense> pooler_;
};

/// The head that names masked tokens. Tied, it is the weight of the embedding with a bias of its own; else a layer whose own bias
/// counts, and the other is there because checkpoints have it.
class BertPredictions : public torch::nn::Module {
 public:
  explicit BertPredictions(const ModelConfig& config);
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& word_weight);

 private:
  at::Tensor bias_;
  std::shared_ptr<BertDense> transform_;
  torch::nn::Linear decoder_{nullptr};
};

class BertForMaskedLM : public torch::nn::Module {
 public:
  explicit BertForMaskedLM(const ModelConfig& config);
  /// The logits [batch, positions, vocabulary].
  at::Tensor forward(const BertInputs& inputs);

 private:
  std::shared_ptr<BertModel> bert_;
  std::shared_ptr<BertPredictions> predictions_;
};

}  // namespace models
